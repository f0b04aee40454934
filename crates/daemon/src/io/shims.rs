//! Shims as processes and connections: starting them, reaching them again, listening. What a dead one left is `lost`'s work.

use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;

use belay_os::process::Identity;
use belay_os::spawn::{Session, SpawnSpec};
use belay_os::{fds, tree};
use belay_protocol::shim::{FromShim, ProcessId};
use belay_record::frame::Frames;
use tokio::net::UnixStream;

use super::outbox::Outbox;
use super::run::{Hub, ShimRecipe};
use crate::event::{Event, ShimId};

/// How often, and after which pause, a socket that cannot be connected to for a passing reason is tried.
const REACH_TRIES: u32 = 20;
const REACH_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

pub(crate) fn spawn(hub: &Rc<Hub>, shim: ShimId, name: &str) {
    match start(&hub.recipe, name) {
        Ok((outbox, process)) => {
            attach(hub, shim, outbox);
            hub.push_event(Event::ShimSpawned { shim, process });
        }
        Err(error) => hub.push_event(Event::ShimNotSpawned { shim, error }),
    }
}

/// Starts a shim with one end of a socket pair as its standard input, and nothing of our environment.
fn start(recipe: &ShimRecipe, name: &str) -> Result<(Outbox, ProcessId), String> {
    let told = |error: std::io::Error| error.to_string();
    let (ours, theirs) = StdStream::pair().map_err(told)?;
    let outbox = Outbox::new(ours).map_err(told)?;
    let null = fds::null().map_err(told)?;
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
        // It may have lived long enough to make what it would have removed at its end.
        let _ = std::fs::remove_file(&socket);
        let _ = recipe.cgroup_base.as_ref().map(|base| std::fs::remove_dir(base.join(name)));
        error.to_string()
    })?;
    let Identity { pid, start_ticks } = spawned.identity;
    Ok((outbox, ProcessId { pid, start_ticks }))
}

pub(crate) fn connect(hub: &Rc<Hub>, shim: ShimId, name: &str) {
    let socket = hub.recipe.socket(name);
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        match reach(&socket).await.and_then(UnixStream::into_std).and_then(Outbox::new) {
            Ok(outbox) => {
                attach(&hub, shim, outbox);
                hub.dispatch(Event::ShimConnected { shim });
            }
            Err(error) => {
                let left = error.kind() == std::io::ErrorKind::NotFound;
                hub.dispatch(Event::ShimUnreachable { shim, error: error.to_string(), left });
            }
        }
    });
}

/// Connects. Only a missing socket and a refusal say that nobody is there; anything else (too many connections at once,
/// no descriptor left) passes.
async fn reach(socket: &std::path::Path) -> std::io::Result<UnixStream> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    for _ in 0..REACH_TRIES {
        match UnixStream::connect(socket).await {
            Err(error) if !matches!(error.kind(), NotFound | ConnectionRefused) => {
                tokio::time::sleep(REACH_PAUSE).await;
            }
            other => return other,
        }
    }
    UnixStream::connect(socket).await
}

fn attach(hub: &Rc<Hub>, shim: ShimId, outbox: Outbox) {
    let outbox = Rc::new(outbox);
    hub.shims.borrow_mut().insert(shim, Rc::clone(&outbox));
    let writer = Rc::clone(&outbox);
    tokio::task::spawn_local(async move { writer.run(|_| ()).await });
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        listen(&hub, shim, &outbox).await;
        outbox.close();
        let is_current = hub.shims.borrow().get(&shim).is_some_and(|current| Rc::ptr_eq(current, &outbox));
        if is_current {
            hub.shims.borrow_mut().remove(&shim);
            hub.dispatch(Event::ShimGone { shim });
        }
    });
}

async fn listen(hub: &Rc<Hub>, shim: ShimId, outbox: &Outbox) {
    let mut frames = Frames::default();
    loop {
        let read = outbox.read(&hub.scratch, |bytes| frames.feed(bytes)).await;
        if read.unwrap_or(0) == 0 || outbox.is_closing() {
            return;
        }
        // Everything that one read brought is one event, so that it is one commit.
        let mut messages: Vec<FromShim> = Vec::new();
        loop {
            match frames.take() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        if !messages.is_empty() {
            hub.dispatch(Event::ShimSaid { shim, messages });
        }
    }
}

/// Removes the cgroups of shims that are no more, and of daemons that died while they tried cgroups out.
pub(crate) fn sweep(hub: &Rc<Hub>) {
    let known = hub.known_shim_names();
    if let Some(base) = &hub.recipe.cgroup_base {
        belay_os::cgroup::remove_stale(base, |name| known.iter().any(|known| known == name));
    }
}

/// Whether this process can be the parent of orphans.
pub(crate) fn become_subreaper() -> std::io::Result<()> {
    tree::become_subreaper()
}
