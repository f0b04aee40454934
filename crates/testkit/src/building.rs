//! How a world is made: its home, its settings, and the user it belongs to.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use belay_os::signal::{self, Signal};

use crate::command;
use crate::world::{NOBODY, World};

/// What is to be different from an ordinary world.
#[derive(Debug)]
pub struct Builder {
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
    user: Option<u32>,
    disk: Option<String>,
}

impl Builder {
    pub(crate) fn new(program: &Path) -> Self {
        // What is tested with keys and hang-ups has to hear of them, also where the tests run in the background.
        static HEED: Once = Once::new();
        HEED.call_once(|| signal::heed(&[Signal::HUP, Signal::INT, Signal::QUIT]).unwrap());
        Self { program: program.to_owned(), env: Vec::new(), user: None, disk: None }
    }

    /// Sets a variable for every command of this world, and so for its daemon.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Everything runs as an ordinary user without rights. Only root can make such a world.
    pub fn as_nobody(mut self) -> Self {
        self.user = Some(NOBODY);
        self
    }

    /// The home is a disk of its own, of this size (`4m`). Only root can make such a world.
    pub fn small_disk(mut self, size: &str) -> Self {
        self.disk = Some(size.to_owned());
        self
    }

    /// Makes the world. No daemon runs in it yet.
    pub fn build(self) -> World {
        // Short, so that the sockets fit into their paths.
        let dir = tempfile::Builder::new().prefix("bl").tempdir_in("/tmp").unwrap();
        let home = dir.path().join("h");
        fs::create_dir(&home).unwrap();
        if let Some(size) = &self.disk {
            mount(&home, size);
        }
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
        let mut program = self.program;
        if let Some(uid) = self.user {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            chown(&home, Some(uid), Some(uid)).expect("only root can make a world for another user");
            program = copy_for_all(&program, dir.path());
        }
        World::over(dir, home, program, self.env, self.user, self.disk.is_some())
    }
}

/// Copies a program, by another process: what is open for writing here, whatever another test starts at that moment has open
/// too, and a program that somebody writes to cannot be run.
pub fn copy_program(program: &Path, copy: &Path) {
    let mut command = Command::new("cp");
    command.arg(program).arg(copy);
    let copied = command::finish(command);
    assert_eq!(copied.code, Some(0), "{copied}");
}

/// The target directory may be closed to other users, so they get a copy.
pub(crate) fn copy_for_all(program: &Path, dir: &Path) -> PathBuf {
    let copy = dir.join(program.file_name().unwrap());
    if !copy.exists() {
        copy_program(program, &copy);
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

fn mount(home: &Path, size: &str) {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o"]).arg(format!("size={size}")).arg("tmpfs").arg(home);
    let mounted = command::finish(mount);
    assert_eq!(mounted.code, Some(0), "only root can make a disk: {mounted}");
}

/// Takes the disk away again, whoever still looks at it.
pub(crate) fn unmount(home: &Path) {
    let mut unmount = Command::new("umount");
    unmount.arg("--lazy").arg(home);
    command::finish(unmount);
}
