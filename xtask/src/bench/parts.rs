//! What the benchmarks compare with and what must be a process of its own: a bare holder of a tree and one who stands before it, an echo, and one who
//! tells many.

use std::ffi::CString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use belay_os::cgroup::{Cgroup, probe};
use belay_os::process::{Pid, descendants, info};
use belay_os::spawn::{Session, SpawnSpec, spawn};
use belay_os::{Tree, fds};
use rustix::io::Errno;
use rustix::process::WaitOptions;

use crate::run::{self, Outcome, command, wait_until};

/// A shell that waits for so many children.
pub(crate) fn shell_line(children: usize) -> String {
    format!("i=0; while [ $i -lt {children} ]; do sleep 100 & i=$((i+1)); done; wait")
}

/// Waits until the shell and its children sleep. Who is killed on its way into its program is gone sooner, and two that are
/// compared must end the same.
pub(crate) fn at_rest(shell: Pid, children: usize) -> Outcome {
    let asleep = |pid: Pid| info(pid).is_some_and(|info| info.state == 'S');
    let rests = || {
        let below = descendants(shell);
        let sleep = below.iter().filter(|info| info.state == 'S' && info.command == "sleep 100").count();
        Ok(sleep == children && asleep(shell))
    };
    if wait_until(Duration::from_secs(20), rests)? { Ok(()) } else { Err("the command does not rest".into()) }
}

/// Holds a shell with so many children in a cgroup (where one can be had), ends all of it and prints how many microseconds
/// that took. `raw`: `cgroup.kill` and `wait` until there is no child. `asked`: the same by one who sleeps until a line comes,
/// and answers when it is done; says `ready` before. `loop`: the product's loop of killing, without the product.
pub(crate) fn hold(way: &str, children: usize) -> Outcome {
    belay_os::tree::become_subreaper()?;
    let base = probe(&format!("belay-bench-hold-{}", std::process::id())).usable;
    let cgroup = base.as_ref().map(|base| Cgroup::create(base, "task")).transpose()?;
    let mut tree = Tree::new(cgroup);
    at_rest(start(&shell_line(children), &tree)?, children)?;
    if way == "asked" {
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
    }
    let began = Instant::now();
    match tree.cgroup().filter(|_| way != "loop") {
        Some(cgroup) => {
            cgroup.kill()?;
            reap_all()?;
        }
        None => drop(tree.kill_until_empty(20_000)?),
    }
    println!("{}", began.elapsed().as_micros());
    if !tree.is_empty()? {
        return Err("the tree is not empty".into());
    }
    if let Some(cgroup) = tree.into_cgroup() {
        cgroup.remove()?;
    }
    if let Some(base) = base {
        std::fs::remove_dir(base)?;
    }
    Ok(())
}

/// Starts a bare holder and stands between it and whoever asks: what it hears from the one goes to the other, and nothing is done
/// with it. That is the way of a stop without all that a supervisor does on it.
pub(crate) fn relay(children: &str) -> Outcome {
    let mut holder = command(std::env::current_exe()?, &["part", "hold", "asked", children]);
    let mut holder = run::start(holder.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let (Some(mut ask), Some(answers)) = (holder.stdin.take(), holder.stdout.take()) else {
        return Err("the holder has no pipes".into());
    };
    let mut answers = BufReader::new(answers);
    let mut line = String::new();
    answers.read_line(&mut line)?;
    print!("{line}");
    line.clear();
    std::io::stdin().read_line(&mut line)?;
    ask.write_all(line.as_bytes())?;
    line.clear();
    answers.read_line(&mut line)?;
    print!("{line}");
    if holder.wait()?.success() { Ok(()) } else { Err("the holder has failed".into()) }
}

fn reap_all() -> Outcome {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn start(line: &str, tree: &Tree) -> Outcome<Pid> {
    let null = fds::null()?;
    let argv = [CString::new("/bin/sh")?, CString::new("-c")?, CString::new(line)?];
    let path = CString::new(format!("PATH={}", std::env::var("PATH").unwrap_or_default()))?;
    let spec = SpawnSpec {
        argv: &argv,
        envp: &[path],
        cwd: None,
        umask: None,
        rlimits: &[],
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        cgroup: tree.cgroup().map(Cgroup::dir),
        session: Session::NewGroup,
    };
    Ok(spawn(&spec)?.identity.pid)
}

/// Serves one connection: every line comes back as it is. Says `ready` when it listens.
pub(crate) fn echo(socket: &Path) -> Outcome {
    let listener = UnixListener::bind(socket)?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        stream.write_all(&line)?;
        line.clear();
    }
    Ok(())
}

/// Tells all who listen. The first connection orders: for each line of how many lines and how long, so many such lines go
/// to every other one, a line to all before the next, as events come. Says `ready` when it listens.
pub(crate) fn tell(socket: &Path, listeners: usize) -> Outcome {
    let listener = UnixListener::bind(socket)?;
    println!("ready");
    let mut orders = BufReader::new(listener.accept()?.0);
    let mut streams = (0..listeners).map(|_| Ok(listener.accept()?.0)).collect::<Outcome<Vec<_>>>()?;
    let mut order = String::new();
    while orders.read_line(&mut order)? > 0 {
        let (count, bytes) = order.trim_end().split_once(' ').ok_or("how many, how long")?;
        let (count, bytes): (usize, usize) = (count.parse()?, bytes.parse()?);
        let mut line = vec![b'.'; bytes];
        line[bytes - 1] = b'\n';
        for _ in 0..count {
            for stream in &mut streams {
                stream.write_all(&line)?;
            }
        }
        order.clear();
    }
    Ok(())
}
