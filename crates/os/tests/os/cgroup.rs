//! Cgroups: made, lived in, emptied, removed; and what a machine without a place for them is told.

use std::os::fd::AsFd;

use belay_os::cgroup::{Cgroup, Layout, probe, remove_stale};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::support::{Order, finish, is_root, not_run, start};

const PATH: &str = "PATH=/usr/bin:/bin";

/// A base directory that goes away with the test.
struct Base(std::path::PathBuf);

impl Drop for Base {
    fn drop(&mut self) {
        remove_stale(&self.0, |_| false);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn base(name: &str) -> Option<Base> {
    let probe = probe(&format!("belay-os-test-{name}-{}", std::process::id()));
    println!("{probe:?}");
    match probe.usable {
        Some(base) => Some(Base(base)),
        None if is_root() && probe.layout != Layout::None && probe.layout != Layout::V1Only => {
            panic!("root has a place for cgroups: {}", probe.why)
        }
        None => {
            not_run(name, &probe.why);
            None
        }
    }
}

#[test]
fn a_cgroup_tells_when_it_is_empty() {
    let Some(base) = base("life") else { return };
    let cgroup = Cgroup::create(&base.0, "task").unwrap();
    assert!(!cgroup.populated().unwrap());
    // The orphan of the shell comes to us, to be reaped in the end.
    belay_os::tree::become_subreaper().unwrap();
    let script = "mkdir \"$1/inner\"; sleep 60 & echo $! > \"$1/inner/cgroup.procs\"; echo up; wait";
    let path = cgroup.path().to_str().unwrap().to_owned();
    let (child, output) = start(
        &["sh", "-c", script, "sh", &path],
        &[PATH],
        &Order { cgroup: Some(cgroup.dir()), ..Order::default() },
    )
    .unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut String::new()).unwrap();
    assert!(cgroup.populated().unwrap());
    let mut pids = cgroup.pids().unwrap();
    pids.retain(|pid| *pid != child.identity.pid);
    let [inner] = pids[..] else { panic!("one process in the inner cgroup: {pids:?}") };
    cgroup.kill().unwrap();
    finish(child.pidfd.as_fd());
    while cgroup.populated().unwrap() {
        let mut fds = [PollFd::from_borrowed_fd(cgroup.events(), PollFlags::PRI)];
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert!(rustix::event::poll(&mut fds, Some(&patience)).unwrap() > 0, "never told that it is empty");
    }
    rustix::process::waitpid(rustix::process::Pid::from_raw(inner), rustix::process::WaitOptions::empty())
        .unwrap();
    cgroup.remove().unwrap();
    assert!(!base.0.join("task").exists());
}

#[test]
fn leftovers_are_removed_and_the_living_kept() {
    let Some(base) = base("stale") else { return };
    for name in ["dead", "claimed", "nested"] {
        Cgroup::create(&base.0, name).unwrap();
    }
    std::fs::create_dir(base.0.join("nested/deep")).unwrap();
    assert_eq!(remove_stale(&base.0, |name| name == "claimed"), 2);
    assert!(base.0.join("claimed").exists() && !base.0.join("nested").exists());
    assert_eq!(remove_stale(&base.0, |_| false), 1);
    assert_eq!(remove_stale(&base.0.join("missing"), |_| false), 0);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["", ".", "..", "a/b", "../x"] {
        let error = Cgroup::create(std::path::Path::new("/"), name).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{name}");
    }
}
