//! Every escape artist against the kill loop: with a cgroup, without, and as an ordinary user.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

use belay_os::process::{identity, signal_identity};
use belay_os::{Delivery, Signal};

use crate::support::{Order, alive, eventually, example, finish, is_root, marker, not_run, start};

const NOBODY: &str = "65534";

/// The line that the holder prints.
#[derive(Debug)]
struct Line(BTreeMap<String, String>);

impl Line {
    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }
}

fn hold(options: &[&str], artist: &str, marker: &str) -> Line {
    let output = Command::new(example("holder"))
        .args(options)
        .arg("--")
        .arg(example("zoo"))
        .args([artist, "--marker", marker])
        // A survivor must not keep us waiting for the end of a pipe.
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{artist} {options:?}: {text}");
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    Line(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// What the other tests rely on: nobody hides from them behind a first thread that has exited.
#[test]
fn the_look_sees_one_whose_first_thread_has_exited() {
    let (zoo, marker) = (example("zoo"), marker());
    let words = [zoo.to_str().unwrap(), "leader-thread-exited", "--marker", &marker];
    let (artist, output) = start(&words, &["PATH=/usr/bin:/bin"], &Order::default()).unwrap();
    let mut ready = String::new();
    BufReader::new(output).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let seen = alive(&marker);
    for pid in &seen {
        signal_identity(identity(*pid).unwrap(), Signal::KILL).unwrap();
    }
    signal_identity(artist.identity, Signal::KILL).unwrap();
    finish(artist.pidfd.as_fd());
    assert_eq!((seen.len(), seen.contains(&artist.identity.pid)), (2, true), "{seen:?}");
}

/// All artists, with whether they need root.
fn artists() -> Vec<(String, bool)> {
    let output = Command::new(example("zoo")).arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let artists: Vec<_> = text
        .lines()
        .map(|line| (line.split(' ').next().unwrap_or_default().to_owned(), line.ends_with(" root")))
        .collect();
    assert!(artists.len() >= 20, "{text}");
    artists
}

/// Runs all artists and names those of whom somebody lived on.
fn nobody_escapes(options: &[&str], with_root: bool, cgroup: bool) {
    let mut escaped = Vec::new();
    for (artist, needs_root) in artists() {
        if needs_root && !with_root {
            not_run(&artist, "needs root");
            continue;
        }
        let marker = marker();
        let line = hold(options, &artist, &marker);
        let left = alive(&marker);
        println!("{artist}: {line:?}");
        if line.get("empty") != "true" || line.get("removed") != "true" || !left.is_empty() {
            escaped.push((artist.clone(), format!("{line:?}"), left));
        }
        assert_eq!(line.get("cgroup"), cgroup.to_string(), "{artist}: {line:?}");
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
}

#[test]
fn nobody_escapes_a_subreaper() {
    nobody_escapes(&[], is_root(), false);
}

#[test]
fn nobody_escapes_with_a_cgroup() {
    if !is_root() {
        return not_run("artists with a cgroup", "needs root");
    }
    nobody_escapes(&["--cgroup"], true, true);
}

#[test]
fn nobody_escapes_an_ordinary_user() {
    if !is_root() {
        return not_run(
            "artists under another user",
            "needs root; the test without a cgroup runs as an ordinary user",
        );
    }
    nobody_escapes(&["--uid", NOBODY], false, false);
}

#[test]
fn nobody_escapes_in_a_delegated_cgroup() {
    if !is_root() {
        return not_run("artists in a delegated cgroup", "needs root to delegate one");
    }
    for artist in ["double-fork", "many", "leader-thread-exited", "setsid-chain"] {
        let marker = marker();
        let line = hold(&["--delegate", "--uid", NOBODY, "--cgroup"], artist, &marker);
        assert_eq!((line.get("empty"), line.get("cgroup")), ("true", "true"), "{artist}: {line:?}");
        assert_eq!(alive(&marker), []);
    }
    // The holders have left; what was delegated to them is empty now.
    let own = belay_os::cgroup::probe("belay-os-tests-unused");
    belay_os::cgroup::remove_stale(&own.own.unwrap(), |name| {
        !name.starts_with("belay-os-delegated-") && name != "belay-os-tests-unused"
    });
}

/// Whoever may not be signalled is named, and the attempt ends at its deadline.
#[test]
fn those_who_may_not_be_signalled_are_named() {
    if !is_root() {
        return not_run("a tree of another user", "needs root");
    }
    // The survivors of the holder come to us, to be reaped in the end.
    belay_os::tree::become_subreaper().unwrap();
    let marker = marker();
    let line = hold(&["--uid", NOBODY, "--drop-late", "--within", "200"], "setsid", &marker);
    assert_eq!(line.get("empty"), "false", "{line:?}");
    let mut named: Vec<i32> = line.get("survivors").split(',').map(|pid| pid.parse().unwrap()).collect();
    let mut left = alive(&marker);
    named.sort_unstable();
    left.sort_unstable();
    assert_eq!(named, left, "{line:?}");
    for pid in &left {
        assert_eq!(signal_identity(identity(*pid).unwrap(), Signal::KILL).unwrap(), Delivery::Sent);
    }
    eventually("the survivors die", || alive(&marker), Vec::is_empty);
    for pid in left {
        let pid = rustix::process::Pid::from_raw(pid);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
    }
}
