//! Shims as processes and connections: starting them, connecting to them again, reading from them. What a dead one left behind is
//! handled in `kill_orphans`.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::rc::Rc;

use belay_os::process::Identity;
use belay_os::spawn::{Rlimit, Session, SpawnError, SpawnSpec, Spawned, Stage, spawn as spawn_process};
use belay_os::{fds, tree};
use belay_protocol::shim::{FromShim, ProcessId};
use belay_record::frame::Frames;
use tokio::net::UnixStream;

use super::connection::Connection;
use super::hub::Hub;
use crate::input::{Input, ShimId};

/// How often, and after which pause, connecting to a socket is tried that fails for a passing reason.
const CONNECT_TRIES: u32 = 20;
const CONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// The program that runs, whatever has become of its file.
const OWN_PROGRAM: &CStr = c"/proc/self/exe";

/// `ENOENT`.
const NO_SUCH_FILE: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// What is needed to start a shim.
#[derive(Clone, Debug)]
pub(crate) struct ShimRecipe {
    pub(crate) program: CString,
    pub(crate) socket_dir: PathBuf,
    pub(crate) cgroup_base: Option<PathBuf>,
    /// The limits that the daemon itself was started with, before it raised its own.
    pub(crate) rlimits: Vec<Rlimit>,
}

impl ShimRecipe {
    /// Whether a process is in the cgroup of some task.
    pub(crate) fn holds_in_cgroup(&self, pid: i32) -> bool {
        let Some(base) = self.cgroup_base.as_ref().and_then(|base| base.file_name()) else { return false };
        let below = format!("/{}/", base.to_string_lossy());
        belay_os::process::cgroup_of(pid).is_some_and(|place| place.contains(&below))
    }

    /// Starts this very program once more. Its file may have been replaced since: the kernel still has it.
    pub(crate) fn spawn(spec: &SpawnSpec<'_>) -> Result<Spawned, SpawnError> {
        match spawn_process(spec) {
            Err(error) if error.stage == Stage::Program && error.errno == NO_SUCH_FILE => {
                let mut argv = spec.argv.to_vec();
                if let Some(program) = argv.first_mut() {
                    *program = CString::from(OWN_PROGRAM);
                }
                spawn_process(&SpawnSpec { argv: &argv, ..*spec })
            }
            other => other,
        }
    }

    /// How the command lines of this program's own children may begin.
    pub(crate) fn own_words(&self) -> impl Iterator<Item = String> {
        let programs = [self.program.to_string_lossy(), OWN_PROGRAM.to_string_lossy()];
        programs.into_iter().flat_map(|program| [format!("{program} shim "), format!("{program} reader")])
    }

    /// Where a shim of this name can be reached.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.socket_dir.join(format!("{name}.sock"))
    }
}

/// Starts a shim on a worker, because the kernel suspends the thread that starts a process.
pub(crate) fn spawn(hub: &Rc<Hub>, shim: ShimId, name: String) {
    let recipe = hub.recipe.clone();
    let started = hub.workers.spawner.run(move |()| start(&recipe, &name));
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        let started =
            started.await.unwrap_or_else(|_| Err("the thread that starts shims is gone".to_owned()));
        let connected = started.and_then(|(stream, process)| {
            Connection::new(stream).map(|ours| (ours, process)).map_err(|error| error.to_string())
        });
        match connected {
            Ok((connection, process)) => {
                attach(&hub, shim, connection);
                hub.dispatch(Input::ShimSpawned { shim, process });
            }
            Err(error) => hub.dispatch(Input::ShimNotSpawned { shim, error }),
        }
    });
}

/// Starts a shim with one end of a socket pair as its standard input, and nothing of the daemon's environment.
fn start(recipe: &ShimRecipe, name: &str) -> Result<(StdStream, ProcessId), String> {
    let text = |error: std::io::Error| error.to_string();
    let (ours, theirs) = StdStream::pair().map_err(text)?;
    let null = fds::null().map_err(text)?;
    let word = |bytes: &[u8]| CString::new(bytes).map_err(|error| error.to_string());
    let socket = recipe.socket(name);
    let mut argv = vec![
        recipe.program.clone(),
        word(b"shim")?,
        word(name.as_bytes())?,
        word(socket.as_os_str().as_bytes())?,
    ];
    if let Some(base) = &recipe.cgroup_base {
        argv.push(word(base.join(name).as_os_str().as_bytes())?);
    }
    let spec = SpawnSpec {
        argv: &argv,
        envp: &[],
        cwd: Some(c"/"),
        umask: Some(0o077),
        rlimits: &recipe.rlimits,
        stdin: theirs.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        cgroup: None,
        session: Session::NewSession,
    };
    let spawned = ShimRecipe::spawn(&spec).map_err(|error| {
        // It may have lived long enough to create what it would have removed at its exit.
        let _ = std::fs::remove_file(&socket);
        let _ = recipe.cgroup_base.as_ref().map(|base| std::fs::remove_dir(base.join(name)));
        error.to_string()
    })?;
    let Identity { pid, start_ticks } = spawned.identity;
    Ok((ours, ProcessId { pid, start_ticks }))
}

pub(crate) fn connect(hub: &Rc<Hub>, shim: ShimId, name: &str) {
    let socket = hub.recipe.socket(name);
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        match connect_to(&socket).await.and_then(UnixStream::into_std).and_then(Connection::new) {
            Ok(connection) => {
                attach(&hub, shim, connection);
                hub.dispatch(Input::ShimConnected { shim });
            }
            Err(error) => {
                let left = error.kind() == std::io::ErrorKind::NotFound;
                hub.dispatch(Input::ShimUnreachable { shim, error: error.to_string(), left });
            }
        }
    });
}

/// Connects. Only a missing socket and a refusal mean that no shim is there; any other error (too many connections at once,
/// no descriptor left) passes.
async fn connect_to(socket: &std::path::Path) -> std::io::Result<UnixStream> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    for _ in 0..CONNECT_TRIES {
        match UnixStream::connect(socket).await {
            Err(error) if !matches!(error.kind(), NotFound | ConnectionRefused) => {
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            other => return other,
        }
    }
    UnixStream::connect(socket).await
}

fn attach(hub: &Rc<Hub>, shim: ShimId, connection: Connection) {
    let connection = Rc::new(connection);
    hub.shims.borrow_mut().insert(shim, Rc::clone(&connection));
    let writer = Rc::clone(&connection);
    tokio::task::spawn_local(async move { writer.run(|_| ()).await });
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        listen(&hub, shim, &connection).await;
        connection.close();
        let is_current =
            hub.shims.borrow().get(&shim).is_some_and(|current| Rc::ptr_eq(current, &connection));
        if is_current {
            hub.shims.borrow_mut().remove(&shim);
            hub.dispatch(Input::ShimGone { shim });
        }
    });
}

async fn listen(hub: &Rc<Hub>, shim: ShimId, connection: &Connection) {
    let mut frames = Frames::default();
    loop {
        let read = connection.read(&hub.scratch, |bytes| frames.feed(bytes)).await;
        if read.unwrap_or(0) == 0 || connection.is_closing() {
            return;
        }
        // Everything that one read brought is one input, so that it is one commit.
        let mut messages: Vec<FromShim> = Vec::new();
        loop {
            match frames.take() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        if !messages.is_empty() {
            hub.dispatch(Input::ShimMessages { shim, messages });
        }
    }
}

/// Removes the cgroups of shims that are gone, and of daemons that died while they probed cgroups.
pub(crate) fn sweep(hub: &Rc<Hub>) {
    let known = hub.known_shim_names();
    if let Some(base) = &hub.recipe.cgroup_base {
        belay_os::cgroup::remove_stale(base, |name| known.iter().any(|known| known == name));
    }
}

/// Makes this process the parent of orphans below it.
pub(crate) fn become_subreaper() -> std::io::Result<()> {
    tree::become_subreaper()
}
