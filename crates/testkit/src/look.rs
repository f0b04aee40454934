//! Processes as `/proc` shows them, read without the help of the code under test. Signals go to an exact process, never
//! to a bare number.

use std::fs;
use std::time::Duration;

use belay_os::process::{Identity, identity, signal_identity};
use belay_os::signal::Signal;

use crate::wait::{LONG, wait_until};

/// One process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub identity: Identity,
    pub ppid: i32,
    pub pgid: i32,
    pub sid: i32,
    pub state: char,
    pub uid: u32,
    /// The most memory that it ever had.
    pub peak_kib: u64,
    pub cmdline: String,
}

pub(crate) fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").unwrap().uid()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim()
}

/// The command line or the environment of a process. One whose first thread has exited shows neither: its others do.
fn words_of(pid: i32, which: &str) -> Vec<u8> {
    let words = fs::read(format!("/proc/{pid}/{which}")).unwrap_or_default();
    if !words.is_empty() {
        return words;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_threads = threads.filter_map(|thread| fs::read(thread.path().join(which)).ok());
    of_threads.into_iter().find(|words| !words.is_empty()).unwrap_or_default()
}

/// The process with this number, if there is one and it is not dead. A zombie is dead, unless it has threads that run.
pub fn look_at(pid: i32) -> Option<Seen> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let cmdline = words_of(pid, "cmdline");
    let after_name = &stat[stat.rfind(')')? + 2..];
    let fields: Vec<&str> = after_name.split(' ').collect();
    let number = |place: usize| fields.get(place)?.parse::<i32>().ok();
    let state = fields.first()?.chars().next()?;
    let dead = matches!(state, 'Z' | 'X') && matches!(field(&status, "Threads:"), "0" | "1" | "");
    if dead {
        return None;
    }
    Some(Seen {
        identity: Identity { pid, start_ticks: fields.get(19)?.parse().ok()? },
        ppid: number(1)?,
        pgid: number(2)?,
        sid: number(3)?,
        state,
        uid: field(&status, "Uid:").split_ascii_whitespace().next()?.parse().ok()?,
        peak_kib: field(&status, "VmHWM:").trim_end_matches(" kB").parse().unwrap_or(0),
        cmdline: String::from_utf8_lossy(&cmdline).replace('\0', " ").trim().to_owned(),
    })
}

/// Whether exactly this process lives.
pub fn is_alive(id: Identity) -> bool {
    look_at(id.pid).is_some_and(|seen| seen.identity == id)
}

/// Everybody alive who carries these words in the command line or in the environment, but for ourselves.
pub fn carrying(words: &str) -> Vec<Seen> {
    let has = |pid: i32, which: &str| {
        words_of(pid, which).windows(words.len()).any(|window| window == words.as_bytes())
    };
    let own = i32::try_from(std::process::id()).unwrap();
    let names = fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != own)
        .filter(|pid| has(*pid, "cmdline") || has(*pid, "environ"))
        .filter_map(look_at)
        .collect()
}

/// Sends a signal to exactly this process.
pub fn send_signal(id: Identity, signal: Signal) {
    signal_identity(id, signal).unwrap_or_else(|error| panic!("{id:?} cannot be signalled: {error}"));
}

/// Kills exactly this process and waits until it is dead.
pub fn end(id: Identity) {
    send_signal(id, Signal::KILL);
    wait_until("death after SIGKILL", LONG, || {
        if is_alive(id) { Err(format!("{:?}", look_at(id.pid))) } else { Ok(()) }
    });
}

/// A process that stands still until this is dropped.
#[derive(Debug)]
pub struct Frozen(Identity);

/// Stops a process with SIGSTOP, and waits until it stands still.
pub fn freeze(pid: i32) -> Frozen {
    let id = identity(pid).unwrap_or_else(|| panic!("there is no process {pid} to freeze"));
    send_signal(id, Signal::STOP);
    wait_until("a stopped process", Duration::from_secs(5), || match look_at(pid) {
        Some(seen) if seen.state == 'T' => Ok(()),
        other => Err(format!("{other:?}")),
    });
    Frozen(id)
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = signal_identity(self.0, Signal::CONT);
    }
}
