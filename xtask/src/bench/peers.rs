//! The peers: task-spooler (`tsp`) and pueue, each with a daemon of its own that is gone afterwards. What cannot be
//! had is left out with a word.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belay_os::Signal;
use belay_os::process::{descendants, own_identity, signal_identity};

use super::cli::{answers, timed};
use super::measure::time;
use super::report::Report;
use super::start::TRUE;
use super::world::{reap, scratch};
use crate::run::{Outcome, command, output, root, succeed, wait_until};
use crate::test::is_there;

/// How many tasks make a rate.
pub(crate) const MANY: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Spooler,
    Pueue,
}

/// A peer with a daemon that runs.
#[derive(Debug)]
pub(crate) struct Peer {
    kind: Kind,
    program: PathBuf,
    dir: PathBuf,
}

/// Those that can be had here.
pub(crate) fn all(report: &mut Report) -> Vec<Peer> {
    let mut peers = Vec::new();
    for (kind, name, find) in [
        (Kind::Spooler, "task-spooler", find_spooler as fn() -> Outcome<PathBuf>),
        (Kind::Pueue, "pueue", find_pueue),
    ] {
        match find().and_then(|program| Peer::begin(kind, program)) {
            Ok(peer) => peers.push(peer),
            Err(error) => report.note(format!("left out: {name} ({error})")),
        }
    }
    peers
}

fn find_spooler() -> Outcome<PathBuf> {
    if !is_there("tsp") {
        succeed(&mut command("apt-get", &["install", "-y", "-qq", "task-spooler"]))?;
    }
    Ok(PathBuf::from("tsp"))
}

fn find_pueue() -> Outcome<PathBuf> {
    let cache = root().join("target/bench-peers");
    let program = cache.join("bin/pueue");
    if !answers(&program, &["--version"]) {
        eprintln!("building pueue, once …");
        let mut install = command("cargo", &["install", "pueue", "--locked", "--root"]);
        // Not at our root: its settings are for our programs.
        install.arg(&cache).current_dir("/").env("CARGO_TARGET_DIR", cache.join("build"));
        succeed(&mut install)?;
    }
    Ok(program)
}

impl Peer {
    fn begin(kind: Kind, program: PathBuf) -> Outcome<Self> {
        let peer = Self { kind, program, dir: scratch()? };
        match kind {
            Kind::Spooler => succeed(&mut peer.command(&["-S", "2"]))?,
            Kind::Pueue => {
                let mut daemon = Command::new(peer.program.with_file_name("pueued"));
                timed(peer.at_home(&mut daemon).arg("--daemonize"))?;
                let ready = || Ok(answers_at(&peer, &["status"]));
                if !wait_until(Duration::from_secs(10), ready)? {
                    return Err("its daemon does not answer".into());
                }
                timed(&mut peer.command(&["parallel", "2"]))?;
            }
        }
        Ok(peer)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Spooler => "task-spooler",
            Kind::Pueue => "pueue",
        }
    }

    /// How often it is asked in a round: pueue looks at its tasks now and then, so that each takes long.
    pub(crate) fn times(&self) -> usize {
        match self.kind {
            Kind::Spooler => 20,
            Kind::Pueue => 1,
        }
    }

    pub(crate) fn start_to_end(&self) -> Outcome<Duration> {
        match self.kind {
            Kind::Spooler => timed(&mut self.command(&["-f", TRUE])),
            Kind::Pueue => time(|| {
                let id = output(&mut self.command(&["add", "--immediate", "--print-task-id", "--", TRUE]))?;
                timed(&mut self.command(&["wait", "--quiet", id.trim()])).map(drop)
            }),
        }
    }

    /// From the first task that was handed over to the end of the last.
    pub(crate) fn many(&self) -> Outcome<Duration> {
        time(|| {
            for _ in 0..MANY {
                match self.kind {
                    Kind::Spooler => timed(&mut self.command(&[TRUE]))?,
                    Kind::Pueue => timed(&mut self.command(&["add", "--", TRUE]))?,
                };
            }
            match self.kind {
                Kind::Spooler => timed(&mut self.command(&["-f", TRUE])).map(drop),
                Kind::Pueue => timed(&mut self.command(&["wait", "--quiet", "--all"])).map(drop),
            }
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        self.at_home(command.args(words));
        command
    }

    fn at_home<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let dir = &self.dir;
        command.current_dir("/").env("HOME", dir).env("XDG_RUNTIME_DIR", dir).env("TMPDIR", dir);
        command.env("TS_SOCKET", dir.join("tsp.sock")).stdin(std::process::Stdio::null())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let end: &[&str] = match self.kind {
            Kind::Spooler => &["-K"],
            Kind::Pueue => &["shutdown"],
        };
        let _ = timed(&mut self.command(end));
        let left = wait_until(Duration::from_secs(3), || {
            reap();
            Ok(!runs(&self.dir))
        });
        if !left.unwrap_or(false) {
            for info in
                descendants(own_identity().pid).iter().filter(|info| belongs(info.identity.pid, &self.dir))
            {
                let _ = signal_identity(info.identity, Signal::KILL);
            }
        }
        reap();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn answers_at(peer: &Peer, words: &[&str]) -> bool {
    crate::run::succeeds_quietly(&mut peer.command(words))
}

/// Whether a process that was started in this directory's name lives.
fn runs(dir: &Path) -> bool {
    descendants(own_identity().pid).iter().any(|info| !info.is_dead() && belongs(info.identity.pid, dir))
}

fn belongs(pid: i32, dir: &Path) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let home = format!("HOME={}", dir.display());
    environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
}
