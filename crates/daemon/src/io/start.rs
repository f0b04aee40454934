//! Starting a daemon: settings, directories, lock, journal, containment, then the event loop. It
//! reports to the process that started it that it is ready, or why it failed.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use belay_journal::{Opened, Reader, Store};
use belay_os::cgroup::{Layout, Probe, probe};
use belay_os::daemonize::{Forked, ReadyPipe, daemonize};
use belay_os::spawn::Rlimit;
use belay_os::{fds, signal};
use belay_protocol::Bytes;
use belay_protocol::daemon::{
    BudgetEnforcement, BudgetEnforcer, CgroupLayout, ContainmentInfo, ContainmentKind,
};
use belay_protocol::vars;

use super::daemon_log;
use super::dirs::{self, Claim};
use super::hub::{Hub, Workers, now};
use super::linux_host::{CrashAt, LinuxHost, home_dir};
use super::listener::{Listener, bind};
use super::settings_file;
use super::shims::{self, ShimRecipe};
use crate::config::Config;
use crate::runtime::Core;
use crate::settings::{Key, Settings};

/// How long the starting process waits for the daemon: adopting thousands of tasks takes seconds.
const START_MS: u64 = 30_000;

const COULD_NOT_START: u8 = 4;

/// `belay daemon --home DIR --runtime-dir DIR`: exits when a daemon is ready in the background.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    // Descriptors inherited from the starting command would stay open as long as the daemon runs.
    let _ = fds::close_from(3);
    let started = directories(args).and_then(|(home, runtime_dir)| {
        let settings = settings(&home)?;
        refuse_inside_task(&home)?;
        match daemonize().map_err(|error| format!("the daemon could not be started: {error}"))? {
            Forked::Parent(child) => match child.wait(START_MS) {
                Ok(text) if text == READY => Ok(()),
                Ok(text) if text.is_empty() => Err("the daemon died while starting".to_owned()),
                Ok(text) => Err(text),
                Err(error) => Err(format!("the daemon did not become ready: {error}")),
            },
            Forked::Child(ready) => be_daemon(settings, &home, &runtime_dir, ready),
        }
    });
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "{message}");
            ExitCode::from(COULD_NOT_START)
        }
    }
}

const READY: &str = "ready";

/// Reads and checks the settings: an invalid setting is reported before the daemon forks.
fn settings(home: &Path) -> Result<Settings, String> {
    let path = home.join(vars::CONFIG_FILE);
    let found = settings_file::read(&path)
        .map_err(|error| format!("the settings in {} cannot be read: {error}", path.display()))?;
    let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Settings::read(home, &found, get).map_err(|error| error.to_string())
}

/// A daemon started by a task would be in the task's process tree and would end with the task.
fn refuse_inside_task(home: &Path) -> Result<(), String> {
    let own_task = std::env::var_os(vars::TASK_HOME).is_some_and(|of| Path::new(&of) == home);
    if own_task {
        return Err(
            "the daemon is not running, and a command inside a task does not start it: it would be part of \
                    the task. Run belay up outside"
                .to_owned(),
        );
    }
    Ok(())
}

fn directories(mut args: impl Iterator<Item = OsString>) -> Result<(PathBuf, PathBuf), String> {
    let usage = "usage: belay daemon --home DIR --runtime-dir DIR (both absolute)";
    let (mut home, mut runtime_dir) = (None, None);
    while let Some(flag) = args.next() {
        let value = args.next().map(PathBuf::from).filter(|path| path.is_absolute());
        match flag.to_str() {
            Some("--home") => home = value,
            Some("--runtime-dir") => runtime_dir = value,
            _ => return Err(usage.to_owned()),
        }
    }
    home.zip(runtime_dir).ok_or_else(|| usage.to_owned())
}

fn be_daemon(settings: Settings, home: &Path, runtime_dir: &Path, ready: ReadyPipe) -> Result<(), String> {
    // The daemon's files are private to this user, independent of the umask of the starting
    // process.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Before anything else is opened. If the kernel refuses it, every spawn copies the whole
    // descriptor table.
    let _slots = belay_os::slots::reserve().ok();
    match prepare(settings, home, runtime_dir) {
        Ok(None) => {
            // Another daemon already serves this home, which is what the starting process needs.
            let _ = ready.tell(READY);
            Ok(())
        }
        Ok(Some(prepared)) => prepared.run(ready),
        Err(message) => {
            let _ = ready.tell(&message);
            Err(message)
        }
    }
}

struct Prepared {
    core: Core<LinuxHost>,
    store: Store,
    reader: Reader,
    recipe: ShimRecipe,
    listener: std::os::unix::net::UnixListener,
    socket: PathBuf,
    claim: Claim,
}

/// Everything up to the loop. None if another daemon owns the home.
fn prepare(settings: Settings, home: &Path, runtime_dir: &Path) -> Result<Option<Prepared>, String> {
    let Some(claim) = dirs::claim(home, runtime_dir).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let log = daemon_log::install(home, settings.log_levels());
    signal::survive_file_limit().map_err(|error| format!("signals cannot be blocked: {error}"))?;
    let before: Option<Rlimit> = fds::raise_nofile().ok();
    shims::become_subreaper().map_err(|error| format!("the daemon cannot become a subreaper: {error}"))?;
    let opened = belay_journal::open(home).map_err(|error| explain(&error))?;
    let Opened { buffer, store, reader, loaded, notices } = opened;
    let containment = containment(home, &settings);
    let config = Config {
        hook_env: hook_env(),
        ..Config::new(home.to_owned(), runtime_dir.to_owned(), containment.clone(), settings)
    };
    // The soft limit was raised to the hard limit.
    let config = config.within(before.map_or(u64::MAX, |before| before.hard));
    let host = LinuxHost { crash_at: crash_at(), user: OnceCell::new() };
    let mut core = Core::new(host, config, buffer, loaded, now());
    for notice in notices {
        let hint = notice.path.map(|path| format!("the damaged file is {}", path.display()));
        core.notice(notice.what, hint.as_deref().unwrap_or_default());
    }
    if let Err(error) = log {
        let path = home.join(vars::LOG_FILE);
        let message = format!("the daemon's log {} cannot be written: {error}", path.display());
        core.notice(message, "free some disk space, or remove what is at that path; it is tried again");
    }
    if let Some(other) = std::env::var_os(vars::TASK_HOME) {
        let message = format!("this daemon was started inside a task of another home, {}", other.display());
        core.notice(message, "it and its tasks are part of that task: they keep it running, and end with it");
    }
    let socket = runtime_dir.join("daemon.sock");
    let listener = bind(&socket)
        .map_err(|error| format!("the socket {} cannot be created: {error}", socket.display()))?;
    let program = std::env::current_exe()
        .map_err(|error| format!("the path of this program cannot be determined: {error}"))?;
    let recipe = ShimRecipe {
        program: CString::new(program.as_os_str().as_bytes()).map_err(|error| error.to_string())?,
        socket_dir: runtime_dir.join("s"),
        cgroup_base: containment.cgroup.map(|path| PathBuf::from(path.as_os_str())),
        rlimits: before.into_iter().collect(),
    };
    Ok(Some(Prepared { core, store, reader, recipe, listener, socket, claim }))
}

impl Prepared {
    fn run(self, ready: ReadyPipe) -> Result<(), String> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(Workers::POOL_THREADS).build();
        let runtime = runtime.map_err(|error| format!("the event loop cannot be created: {error}"))?;
        let Self { core, store, reader, recipe, listener, socket, claim } = self;
        let local = tokio::task::LocalSet::new();
        let result = local.block_on(&runtime, async {
            let listener = Listener::new(listener, socket.clone()).map_err(|error| error.to_string())?;
            let workers = Workers::start(store, reader)
                .map_err(|error| format!("the worker threads cannot be started: {error}"))?;
            let hub = Hub::new(core, recipe, workers)
                .map_err(|error| format!("the timer cannot be created: {error}"))?;
            let on_ready = || {
                claim.set_serving(true);
                let _ = ready.tell(READY);
            };
            hub.run(listener, on_ready).await;
            Ok::<(), String>(())
        });
        claim.set_serving(false);
        // A search that is running ends with the process, and delays nothing.
        drop(local);
        runtime.shutdown_background();
        // While the lock is held, so that the socket of a new daemon is never removed.
        let _ = std::fs::remove_file(&socket);
        result
    }
}

/// The point at which recovery tests make this daemon crash.
fn crash_at() -> Option<CrashAt> {
    let value = std::env::var_os(vars::CRASH_AT)?;
    Some(CrashAt::parse(&value.to_string_lossy()))
}

/// The environment of hooks: the daemon's own, without the variables of the starting process, with
/// PATH and HOME.
fn hook_env() -> Vec<Bytes> {
    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env: BTreeMap<OsString, OsString> =
        std::env::vars_os().filter(|(name, _)| name != vars::CRASH_AT).collect();
    env.entry("PATH".into()).or_insert_with(|| PATH.into());
    if let Some(home) = home_dir() {
        env.entry("HOME".into()).or_insert_with(|| home.into());
    }
    let joined = env.into_iter().map(|(name, value)| [name, value].join(OsStr::new("=")));
    joined.map(Bytes::from).collect()
}

fn containment(home: &Path, settings: &Settings) -> ContainmentInfo {
    let name = format!("belay-{}", &crate::keyed_hash::keyed(&[0; 32], home.as_os_str().as_bytes())[..12]);
    if !settings.cgroup() {
        let why = format!("cgroups are switched off by {}", settings.source(Key::Cgroup));
        let budgets = BudgetEnforcement { why: Some(why.clone()), ..BudgetEnforcement::default() };
        let (kind, layout) = (ContainmentKind::Subreaper, CgroupLayout::Off);
        return ContainmentInfo { kind, layout, cgroup: None, why, budgets };
    }
    let Probe { layout, usable, why, limits, .. } = probe(&name);
    let layout = match layout {
        Layout::PureV2 => CgroupLayout::V2,
        Layout::Hybrid => CgroupLayout::Hybrid,
        Layout::V1Only => CgroupLayout::V1,
        Layout::None => CgroupLayout::None,
    };
    let kind = if usable.is_some() { ContainmentKind::Cgroup } else { ContainmentKind::Subreaper };
    let enforcer = |by_kernel| if by_kernel { BudgetEnforcer::Kernel } else { BudgetEnforcer::Sampling };
    let budgets = BudgetEnforcement {
        memory: enforcer(limits.memory),
        processes: enforcer(limits.processes),
        why: limits.why.or_else(|| usable.is_none().then(|| why.clone())),
    };
    ContainmentInfo {
        kind,
        layout,
        cgroup: usable.map(|path| Bytes::from(path.into_os_string())),
        why,
        budgets,
    }
}

fn explain(error: &belay_journal::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
