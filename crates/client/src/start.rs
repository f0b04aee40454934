//! Starting the daemon: a process that makes itself a daemon and exits when that one is ready. It waits for nothing else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use belay_protocol::vars;
use rustix::fs::MemfdFlags;

use crate::error::ClientError;
use crate::paths::Paths;

/// How much of what a failed start said is passed on.
const MAX_SAID_BYTES: u64 = 16 * 1024;

/// Starts the daemon with the `belay` program and additional environment variables, and waits until it is ready. Succeeds also
/// if a daemon was running already.
pub fn start_daemon(paths: &Paths, exe: &Path, env: &[(&str, &OsStr)]) -> Result<(), ClientError> {
    let doing = "start the daemon";
    // A file, not a pipe: whatever the daemon keeps open, the end of the process alone decides when we go on.
    let memory = rustix::fs::memfd_create("belay-start", MemfdFlags::CLOEXEC)
        .map_err(|e| ClientError::io(doing, e))?;
    let mut said = File::from(memory);
    let stderr = said.try_clone().map_err(|e| ClientError::io(doing, e))?;

    let mut command = Command::new(exe);
    command.arg("daemon").arg("--home").arg(&paths.home).arg("--runtime-dir").arg(&paths.runtime_dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // A daemon belongs to no task, keeps no directory busy, and keeps none of the secrets that were in the environment
    // of whoever happened to type the first command: it gets its own settings and nothing else.
    let of_a_task = [vars::TASK, vars::SESSION, vars::TOKEN];
    let settings = std::env::vars_os().filter(|(name, _)| {
        name.to_str().is_some_and(|name| name.starts_with("BELAY_") && !of_a_task.contains(&name))
    });
    command.current_dir("/").env_clear().envs(settings);
    command.envs(env.iter().copied());
    let status = finish(&mut command).map_err(|e| ClientError::io(doing, e))?;
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    let _ = said.rewind();
    let _ = said.take(MAX_SAID_BYTES).read_to_end(&mut text);
    let stderr = String::from_utf8_lossy(&text).into_owned();
    Err(ClientError::StartFailed { status: status.to_string(), stderr })
}

#[expect(clippy::disallowed_methods, reason = "the daemon is no task: it is what belay-os will run in")]
fn finish(command: &mut Command) -> std::io::Result<ExitStatus> {
    command.status()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    fn program(dir: &Path, script: &str) -> std::path::PathBuf {
        let path = dir.join("belay");
        let mut file = File::options().create_new(true).write(true).mode(0o755).open(&path).unwrap();
        file.write_all(script.as_bytes()).unwrap();
        path
    }

    /// One test, not two: a program that another thread's child still holds open for writing cannot be run.
    #[test]
    fn the_end_of_the_process_decides_and_a_failure_says_why() {
        let paths = Paths::new("/h".into(), "/r".into());
        let dir = tempfile::tempdir().unwrap();
        let exe = program(dir.path(), "#!/bin/sh\necho \"no room for $3 and $5\" >&2\nexit 1\n");
        let error = start_daemon(&paths, &exe, &[]).unwrap_err();
        assert_eq!(error.to_string(), "the daemon could not be started: no room for /h and /r");

        // A daemon that keeps its standard error open holds nobody up.
        let dir = tempfile::tempdir().unwrap();
        let exe = program(dir.path(), "#!/bin/sh\nsleep 5 &\nexit 0\n");
        let before = std::time::Instant::now();
        start_daemon(&paths, &exe, &[]).unwrap();
        assert!(before.elapsed() < std::time::Duration::from_secs(4));
    }
}
