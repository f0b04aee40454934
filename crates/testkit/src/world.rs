//! One world: a home, the daemon in it, and the commands that reach it. Its end is a test too: nobody may be left.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belay_client::{Client, Paths};
use belay_os::process::Identity;
use belay_protocol::daemon::DaemonStatusResult;
use belay_protocol::event::EventKind;
use belay_protocol::methods::{DaemonStatus, EventRead, OutputRead, TaskGet, TaskStart, TaskStop, TaskWait};
use belay_protocol::task::{
    ShellCommand, TaskGetParams, TaskInfo, TaskStartParams, TaskStopParams, TaskStopResult, TaskWaitParams,
    TaskWaitResult, WaitMet,
};
use belay_protocol::{event, output};
use tempfile::TempDir;

use crate::building::{Builder, copy_for_all, unmount};
use crate::command::{self, Output, Running};
use crate::look::{self, Seen, carrying, look_at};
use crate::wait::{LONG, wait_until};

/// The ordinary user that tests become.
pub const NOBODY: u32 = 65_534;

/// How long everybody may take to leave when the daemon has been told to.
const LEAVING: Duration = Duration::from_secs(10);

/// A home with whatever lives in it.
#[derive(Debug)]
pub struct World {
    dir: TempDir,
    home: PathBuf,
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
    user: Option<u32>,
    /// The home is a disk of its own.
    mounted: bool,
}

impl World {
    /// An ordinary world. `program` is `env!("CARGO_BIN_EXE_belay")`, which only the tests of that package know.
    pub fn new(program: &str) -> Self {
        Self::builder(program).build()
    }

    pub fn builder(program: &str) -> Builder {
        Builder::new(Path::new(program))
    }

    pub(crate) fn over(
        dir: TempDir,
        home: PathBuf,
        program: PathBuf,
        env: Vec<(OsString, OsString)>,
        user: Option<u32>,
        mounted: bool,
    ) -> Self {
        Self { dir, home, program, env, user, mounted }
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A place for a test's own files, beside the home.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What every process of this world carries in its command line or environment, and no other does.
    pub fn marker(&self) -> &str {
        self.home.to_str().unwrap()
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A program that the user of this world can run.
    pub fn reachable(&self, program: &Path) -> PathBuf {
        if self.user.is_some() { copy_for_all(program, self.dir()) } else { program.to_owned() }
    }

    /// Any command, as the user of this world and with its environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups");
                command.arg(program);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"BELAY_") {
                command.env_remove(name);
            }
        }
        command.env("BELAY_HOME", &self.home).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir("/");
        command
    }

    fn belay_command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command(&self.program);
        command.args(args);
        command
    }

    /// Runs `belay` to its end.
    #[track_caller]
    pub fn belay<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        command::finish(self.belay_command(args))
    }

    /// Runs `belay` with a change to the command that runs it.
    #[track_caller]
    pub fn belay_with<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        change: impl FnOnce(&mut Command),
    ) -> Output {
        let mut command = self.belay_command(args);
        change(&mut command);
        command::finish(command)
    }

    /// Starts `belay` and lets it run.
    pub fn spawn<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Running {
        Running::start(self.belay_command(args), false)
    }

    /// Starts `belay` with a standard input to write to.
    pub fn spawn_with_stdin<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Running {
        Running::start(self.belay_command(args), true)
    }

    /// Starts a line of shell at a terminal of its own, with `belay` as `$BELAY`. What is written to it is typed there.
    pub fn at_terminal(&self, line: &str) -> Running {
        let mut command = self.command("script");
        command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
        command.env("BELAY", &self.program).env("SHELL", "/bin/sh").env("TERM", "xterm");
        Running::start(command, true)
    }

    /// Runs a line of shell in this world, with `belay` as `$BELAY`.
    #[track_caller]
    pub fn shell(&self, line: &str) -> Output {
        let mut command = self.command("sh");
        command.arg("-c").arg(line).env("BELAY", &self.program);
        command::finish(command)
    }

    /// Starts a line of shell that is no task, in this world.
    pub fn shell_in_background(&self, line: &str) -> Running {
        let mut command = self.command("sh");
        command.arg("-c").arg(line);
        Running::start(command, false)
    }

    /// Starts a detached task with `belay run -d` and says its id.
    #[track_caller]
    pub fn run_detached<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        let mut words: Vec<OsString> = vec!["run".into(), "-d".into()];
        words.extend(args.into_iter().map(|word| word.as_ref().to_owned()));
        self.belay(words).ok().line()
    }

    pub fn paths(&self) -> Paths {
        Paths::new(self.home.clone(), self.home.join("run"))
    }

    /// A connection over which any call can be made; the daemon is started if there is none.
    #[track_caller]
    pub fn client(&self) -> Client {
        assert_eq!(self.user, None, "a daemon of another user does not talk to us");
        // The daemon must get the settings of this world, so the command starts it.
        if let Ok(client) = Client::connect(&self.paths()) {
            return client;
        }
        self.belay(["up"]).ok();
        Client::connect(&self.paths()).unwrap()
    }

    /// A connection that speaks in the name of a session or a task.
    #[track_caller]
    pub fn client_as(&self, token: &str) -> Client {
        drop(self.client());
        Client::connect(&Paths { token: Some(token.to_owned()), ..self.paths() }).unwrap()
    }

    /// What a start needs, for the caller to change: the command, and nothing of our environment but this world's mark.
    pub fn start_params(&self, argv: &[&str]) -> TaskStartParams {
        let home = format!("BELAY_HOME={}", self.marker());
        let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
        TaskStartParams {
            env: vec![home.into(), path.into()],
            detached: true,
            ..TaskStartParams::new(ShellCommand::argv(argv.iter().copied()), "/")
        }
    }

    #[track_caller]
    pub fn start(&self, params: &TaskStartParams) -> TaskInfo {
        self.client().call::<TaskStart>(params).unwrap()
    }

    #[track_caller]
    pub fn inspect(&self, id: &str) -> TaskInfo {
        self.belay(["inspect", "--json", id]).ok().json()
    }

    #[track_caller]
    pub fn get(&self, id: &str) -> TaskInfo {
        self.client().call::<TaskGet>(&TaskGetParams { id: id.to_owned() }).unwrap()
    }

    #[track_caller]
    pub fn stop(&self, params: &TaskStopParams) -> TaskStopResult {
        self.client().call::<TaskStop>(params).unwrap()
    }

    /// Waits for a task's end, and says how it ended.
    #[track_caller]
    pub fn wait_ended(&self, id: &str) -> TaskInfo {
        let limit_ms = u64::try_from(LONG.as_millis()).unwrap();
        let params = TaskWaitParams { timeout_ms: Some(limit_ms), ..TaskWaitParams::for_end(id) };
        let TaskWaitResult { met, task, .. } = self.client().call::<TaskWait>(&params).unwrap();
        assert_eq!(met, WaitMet::Ended, "the task did not end: {task:?}");
        task
    }

    /// Everything that a task wrote and that is kept, as `belay logs --raw` gives it.
    #[track_caller]
    pub fn logs(&self, id: &str) -> Vec<u8> {
        self.belay(["logs", "--raw", id]).ok().stdout
    }

    /// What a task wrote to its standard output.
    #[track_caller]
    pub fn stdout_of(&self, id: &str) -> Vec<u8> {
        self.belay(["logs", "--raw", "--stream", "stdout", id]).ok().stdout
    }

    /// Waits until a task's output is right.
    #[track_caller]
    pub fn wait_for_output(&self, id: &str, what: &str, right: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        wait_until(what, LONG, || {
            let heard = self.logs(id);
            let end = String::from_utf8_lossy(&heard[heard.len().saturating_sub(400)..]).into_owned();
            if right(&heard) { Ok(heard) } else { Err(format!("the output of {id} ends with {end:?}")) }
        })
    }

    #[track_caller]
    pub fn read(&self, params: &output::OutputReadParams) -> output::OutputReadResult {
        self.client().call::<OutputRead>(params).unwrap()
    }

    /// Every event that is kept.
    #[track_caller]
    pub fn events(&self) -> Vec<event::EventInfo> {
        let mut client = self.client();
        let (mut after, mut all) = (0, Vec::new());
        loop {
            let params = event::EventReadParams { after, ..event::EventReadParams::default() };
            let page = client.call::<EventRead>(&params).unwrap();
            if page.events.is_empty() {
                return all;
            }
            all.extend(page.events);
            after = page.next;
        }
    }

    /// The types of a task's events, in order.
    #[track_caller]
    pub fn events_of(&self, id: &str) -> Vec<EventKind> {
        let events = self.events().into_iter().map(|info| info.event);
        events.filter(|event| event.task() == Some(id)).map(|event| event.kind()).collect()
    }

    #[track_caller]
    pub fn status(&self) -> DaemonStatusResult {
        self.client().call::<DaemonStatus>(&belay_protocol::daemon::DaemonStatusParams::default()).unwrap()
    }

    /// The daemon that holds this home now.
    pub fn daemon(&self) -> Option<Seen> {
        self.daemons().pop()
    }

    /// Every daemon of this home.
    pub fn daemons(&self) -> Vec<Seen> {
        let words = format!("daemon --home {} ", self.marker());
        // It leads a session. The process that started it does not.
        let is_daemon =
            |seen: &Seen| seen.cmdline.contains(&words) && seen.sid == seen.identity.pid && seen.state != 'Z';
        let found: Vec<Seen> = self.everybody().into_iter().filter(is_daemon).collect();
        // A child that is about to become a shim leads a session too, and has the command line of its parent.
        let is_child = |seen: &&Seen| found.iter().any(|other| other.identity.pid == seen.ppid);
        found.iter().filter(|seen| !is_child(seen)).cloned().collect()
    }

    #[track_caller]
    pub fn daemon_pid(&self) -> i32 {
        self.daemon().expect("no daemon runs in this world").identity.pid
    }

    /// `kill -9` of the daemon, and of nobody else; returns when it is dead.
    #[track_caller]
    pub fn kill_daemon(&self) -> Identity {
        let id = self.daemon().expect("no daemon runs in this world").identity;
        look::end(id);
        id
    }

    /// Every live process of this world: daemon, shims, tasks, commands.
    pub fn everybody(&self) -> Vec<Seen> {
        carrying(self.marker())
    }

    /// The shims of this world.
    pub fn shims(&self) -> Vec<Seen> {
        let words = format!(" {}/run/s/", self.marker());
        self.everybody().into_iter().filter(|seen| seen.cmdline.contains(&words)).collect()
    }

    /// Waits until a process is dead.
    #[track_caller]
    pub fn wait_dead(&self, what: &str, pid: i32) {
        wait_until(what, LONG, || match look_at(pid) {
            Some(seen) if self.everybody().contains(&seen) => Err(format!("{seen:?}")),
            _ => Ok(()),
        });
    }

    /// Ends everything and says who did not go. Called when a world is dropped.
    fn close(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.everybody().is_empty() && !self.home.join("journal.db").exists() {
            return wrong;
        }
        // A daemon that was killed is followed by one that knows its tasks.
        let up = self.belay(["up", "--json"]);
        let cgroup = serde_json::from_slice::<DaemonStatusResult>(&up.stdout)
            .ok()
            .and_then(|up| up.containment.cgroup);
        let down = self.belay(["down", "--stop-tasks", "--grace", "200ms"]);
        if up.code != Some(0) || down.code != Some(0) {
            wrong.push(format!("the end of the daemon: up: {up}; down: {down}"));
        }
        let until = std::time::Instant::now() + LEAVING;
        while !self.everybody().is_empty() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        for left in self.everybody() {
            wrong.push(format!("left over: {left:?}"));
            look::end(left.identity);
        }
        if let Some(base) = cgroup {
            let base = Path::new(base.as_os_str()).to_owned();
            let entries = std::fs::read_dir(&base).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.path().is_dir());
            wrong.extend(below.map(|entry| format!("a cgroup is left over: {}", entry.path().display())));
            let _ = std::fs::remove_dir(&base);
        }
        wrong
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        let closed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.close()));
        if self.mounted {
            unmount(&self.home);
        }
        let wrong = closed.unwrap_or_else(|_| vec!["the world could not be closed".to_owned()]);
        assert!(wrong.is_empty() || panicking, "the world {} ended badly: {wrong:#?}", self.marker());
    }
}
