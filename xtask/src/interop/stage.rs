//! A place for one turn of an agent: a home for it and one for Belay below the temporary directory, Belay under the name of
//! a shell, and no trace afterwards. Belay is only ever asked as a person asks it, by its commands.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belay_os::process::{info, signal_identity};
use belay_os::{Identity, ProcessInfo, Signal};
use belay_protocol::task::{TaskInfo, TaskStatus};
use belay_protocol::vars;

use crate::run::{Outcome, bin_dir, command, output};

/// For what takes a moment on a good day, on a bad one.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// How long it takes until somebody looks again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub(crate) struct Stage {
    dir: PathBuf,
    belay: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("belay-interop-{}-{count}", std::process::id()));
        let stage = Self { dir, belay: bin_dir()?.join("belay") };
        for part in ["", "belay", "home", "tmp", "work", "bin"] {
            std::fs::create_dir(stage.dir.join(part))?;
        }
        std::os::unix::fs::symlink(&stage.belay, stage.shell())?;
        Ok(stage)
    }

    /// Belay as an agent is given it.
    pub(crate) fn shell(&self) -> PathBuf {
        self.dir.join("bin/bash")
    }

    /// The directory in which the agent works.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Puts a command here, and gives it nothing else from outside.
    pub(crate) fn settle<'a>(&self, command: &'a mut Command, path: &std::ffi::OsStr) -> &'a mut Command {
        command.env("PATH", path).env("HOME", self.dir.join("home")).env("TMPDIR", self.dir.join("tmp"));
        command.env("TERM", "dumb").env("LANG", "C.UTF-8").env(vars::HOME, self.dir.join("belay"));
        command.current_dir(self.work())
    }

    /// The text without what differs from one place to the other.
    pub(crate) fn masked(&self, text: &str) -> String {
        text.replace(&self.dir.display().to_string(), "STAGE")
    }

    pub(crate) fn belay(&self, words: &[&str]) -> Outcome<String> {
        let mut command = command(&self.belay, words);
        output(command.env_remove(vars::RUNTIME_DIR).env(vars::HOME, self.dir.join("belay")))
    }

    /// The tasks whose command has these words in it. An agent's shell does things of its own, too.
    pub(crate) fn tasks(&self, words: &str) -> Outcome<Vec<TaskInfo>> {
        let said = self.belay(&["ps", "-a", "--json"])?;
        let tasks: Result<Vec<TaskInfo>, _> = said.lines().map(serde_json::from_str).collect();
        Ok(tasks?.into_iter().filter(|task| has_words(task, words)).collect())
    }

    /// The one task with these words that runs.
    pub(crate) fn running(&self, words: &str) -> Outcome<TaskInfo> {
        wait_for("a running task in belay ps --json", || {
            if !self.socket().exists() {
                // The agent's shell starts the daemon, not we.
                return Ok(Err("no daemon".to_owned()));
            }
            let said = self.belay(&["ps", "--json"])?;
            let tasks: Result<Vec<TaskInfo>, _> = said.lines().map(serde_json::from_str).collect();
            let mut tasks = tasks?.into_iter();
            let found = tasks.find(|task| has_words(task, words) && task.status == TaskStatus::Running);
            Ok(found.ok_or(format!("belay ps --json: {said:?}")))
        })
    }

    pub(crate) fn ended(&self, id: &str) -> Outcome<TaskInfo> {
        wait_for("the end of the task", || {
            let task = self.inspect(id)?;
            Ok(if task.status.is_ended() { Ok(task) } else { Err(format!("{:?}", task.status)) })
        })
    }

    pub(crate) fn inspect(&self, id: &str) -> Outcome<TaskInfo> {
        Ok(serde_json::from_str(&self.belay(&["inspect", id, "--json"])?)?)
    }

    /// The processes of a task, when there are so many that run this command.
    pub(crate) fn tree(&self, id: &str, sleeper: &str, count: usize) -> Outcome<Vec<Identity>> {
        wait_for("the whole tree of the task", || {
            let processes = self.inspect(id)?.processes.unwrap_or_default();
            let there = processes.iter().filter(|process| process.command == sleeper).count();
            let tree = processes.iter().filter_map(|process| belay_os::process::identity(process.pid));
            Ok(if there == count { Ok(tree.collect()) } else { Err(format!("{processes:?}")) })
        })
    }

    /// Takes the daemon down and waits until nothing lives that has to do with this place.
    pub(crate) fn end(&self) -> Outcome {
        if self.socket().exists() {
            self.belay(&["down", "--stop-tasks", "--grace", "1s"])?;
        }
        let mark = self.mark();
        wait_for("nothing to be left", || Ok(none_of(&alive(&mark))))
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("belay/run/daemon.sock")
    }

    /// No two places have it, and none has the beginning of another's.
    fn mark(&self) -> String {
        format!("{}/", self.dir.display())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // After a check that failed in the middle there is something left; the failure has been told already.
        if self.end().is_err() {
            for left in alive(&self.mark()) {
                eprintln!("killed: {} {}", left.identity.pid, left.command);
                let _ = signal_identity(left.identity, Signal::KILL);
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn has_words(task: &TaskInfo, words: &str) -> bool {
    task.spec.argv().iter().any(|word| word.to_text_lossy().contains(words))
}

/// Whatever lives with this in its environment or its command line.
pub(crate) fn alive(mark: &str) -> Vec<ProcessInfo> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = pids.filter(|pid| {
        ["environ", "cmdline"].iter().any(|file| {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text.windows(mark.len()).any(|part| part == mark.as_bytes())
        })
    });
    ours.filter_map(info).filter(|info| !info.is_dead()).collect()
}

/// Good if there are none.
pub(crate) fn none_of(processes: &[ProcessInfo]) -> Result<(), String> {
    if processes.is_empty() {
        return Ok(());
    }
    let names = processes.iter().map(|info| format!("{} {}", info.identity.pid, info.command));
    Err(format!("alive: {}", names.collect::<Vec<_>>().join("; ")))
}

/// Looks until it is there; with the last thing seen if it never was.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Outcome<Result<T, String>>) -> Outcome<T> {
    let until = Instant::now() + LIMIT;
    loop {
        let last = match look()? {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if Instant::now() >= until {
            let limit = LIMIT.as_secs();
            return Err(format!("expected within {limit} s: {what}\n    seen at last: {last}").into());
        }
        // Looking is a process each time, and the agent needs the machine to itself.
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Good if both are the same.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, expected: &T, seen: &T) -> Outcome {
    if expected == seen {
        return Ok(());
    }
    Err(format!("{what}\n    expected: {expected:?}\n    seen:     {seen:?}").into())
}

/// Good if it holds; otherwise with what was seen.
pub(crate) fn holds(what: &str, is_so: bool, seen: &dyn Debug) -> Outcome {
    if is_so { Ok(()) } else { Err(format!("expected: {what}\n    seen: {seen:?}").into()) }
}

/// What a file says, or nothing.
pub(crate) fn text_of(file: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
}
