//! Going into the background, in a process of its own because it must have one thread.

use std::process::Command;

use crate::support::example;

#[test]
fn the_child_has_left_everything_behind() {
    belay_os::tree::become_subreaper().unwrap();
    let output = Command::new(example("holder")).arg("--daemonize").env("SECRET", "hush").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (pid, rest) = text.trim().split_once(' ').unwrap_or_default();
    assert_eq!(rest, "true / /dev/null false", "{text} {}", String::from_utf8_lossy(&output.stderr));
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap());
    rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
}
