//! What the benchmarks compare with and what must be a process of its own: a bare holder of a tree, an echo, and one who
//! tells many.

use std::ffi::CString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Instant;

use belay_os::cgroup::{Cgroup, probe};
use belay_os::spawn::{Session, SpawnSpec, spawn};
use belay_os::{Tree, fds};
use rustix::io::Errno;
use rustix::process::WaitOptions;

use crate::run::Outcome;

/// Holds one shell line in a cgroup (where one can be had), waits until it says `ready`, ends all of it and prints
/// how many microseconds that took. `raw`: `cgroup.kill` and `wait` until there is no child. `loop`: the product's
/// loop of killing, without the product.
pub(crate) fn hold(way: &str, line: &str) -> Outcome {
    belay_os::tree::become_subreaper()?;
    let base = probe(&format!("belay-bench-hold-{}", std::process::id())).usable;
    let cgroup = base.as_ref().map(|base| Cgroup::create(base, "task")).transpose()?;
    let mut tree = Tree::new(cgroup);
    let output = start(line, &tree)?;
    let mut said = String::new();
    BufReader::new(std::fs::File::from(output.try_clone()?)).read_line(&mut said)?;
    let began = Instant::now();
    match tree.cgroup().filter(|_| way == "raw") {
        Some(cgroup) => {
            cgroup.kill()?;
            reap_all()?;
        }
        None => drop(tree.kill_until_empty(20_000)?),
    }
    let took = began.elapsed();
    if said != "ready\n" || !tree.is_empty()? {
        return Err("the tree was not ready, or is not empty".into());
    }
    if let Some(cgroup) = tree.into_cgroup() {
        cgroup.remove()?;
    }
    if let Some(base) = base {
        std::fs::remove_dir(base)?;
    }
    println!("{}", took.as_micros());
    Ok(())
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

fn start(line: &str, tree: &Tree) -> Outcome<OwnedFd> {
    let null = fds::null()?;
    let (reader, writer) = fds::pipe(0)?;
    let argv = [CString::new("/bin/sh")?, CString::new("-c")?, CString::new(line)?];
    let path = CString::new(format!("PATH={}", std::env::var("PATH").unwrap_or_default()))?;
    let spec = SpawnSpec {
        argv: &argv,
        envp: &[path],
        cwd: None,
        umask: None,
        rlimits: &[],
        stdin: null.as_fd(),
        stdout: writer.as_fd(),
        stderr: null.as_fd(),
        cgroup: tree.cgroup().map(Cgroup::dir),
        session: Session::NewGroup,
    };
    spawn(&spec)?;
    Ok(reader)
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
