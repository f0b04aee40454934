//! Programs that `cargo test` does not build for a test that needs them: the examples of `belay-os`, and `belay` itself for
//! documentation tests. They are built here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

use crate::command;
use crate::world::World;

static BUILDING: Mutex<()> = Mutex::new(());

/// The path of an example of `belay-os`, such as `zoo`.
pub fn example(name: &str) -> PathBuf {
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(Path::parent).expect("tests live in target/…/PROFILE/deps");
    let path = profile.join("examples").join(name);
    let root = root();
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

/// A world for a documentation test, whose crate does not know where `belay` is.
pub fn doc_world() -> World {
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(root()).args(["build", "--workspace", "--bin", "belay", "--message-format", "json"]);
    let built = command::finish(build);
    let messages = built.stdout.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let program = messages.rev().find_map(|message| message["executable"].as_str().map(str::to_owned));
    World::new(&program.unwrap_or_else(|| panic!("belay could not be built: {built}")))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("crates are below the root")
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}
