//! Where the helper programs are: the examples of `belay-os`, beside the tests in the target directory. `cargo test`
//! of another package does not build them, so they are built here when they are missing or older than their source.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::command;

static BUILDING: Mutex<()> = Mutex::new(());

/// The path of an example of `belay-os`, such as `zoo`.
pub fn example(name: &str) -> PathBuf {
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(Path::parent).expect("tests live in target/…/PROFILE/deps");
    let path = profile.join("examples").join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).unwrap();
    let source = root.join("crates/os/examples").join(format!("{name}.rs"));
    if changed(&path).is_some_and(|built| changed(&source).is_some_and(|written| written <= built)) {
        return path;
    }
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(root).args(["build", "-p", "belay-os", "--example", name]);
    if profile.file_name().is_some_and(|profile| profile == "release") {
        build.arg("--release");
    }
    let built = command::finish(build);
    assert!(
        built.code == Some(0) && path.exists(),
        "the helper program {} could not be built; `cargo build -p belay-os --example {name}` said: {}",
        path.display(),
        String::from_utf8_lossy(&built.stderr)
    );
    path
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}
