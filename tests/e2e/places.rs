//! Places where nothing can be kept: whoever names one is told which path is wrong, what it is, and what to do.

use std::path::Path;

use belay_protocol::daemon::FindingTopic;
use belay_testkit::World;

use crate::support::world;

/// Every command says the same of this home and this runtime directory, and `doctor` finds it.
#[track_caller]
fn assert_useless(
    world: &World,
    home: &Path,
    runtime_dir: Option<&Path>,
    topic: FindingTopic,
    told: [&str; 2],
) {
    let [problem, hint] = told;
    let run = |words: &[&str]| {
        world.belay_with(words, |command| {
            command.env("BELAY_HOME", home);
            runtime_dir.map(|dir| command.env("BELAY_RUNTIME_DIR", dir));
        })
    };
    for words in [&["run", "true"][..], &["ps"], &["up"], &["status"], &["down"]] {
        let said = run(words);
        assert_eq!((said.code, said.stdout.as_slice()), (Some(4), &b""[..]), "{words:?}: {said}");
        assert_eq!(
            String::from_utf8_lossy(&said.stderr),
            format!("error: {problem}\n hint: {hint}\n"),
            "{words:?}"
        );
    }
    let said = run(&["doctor"]);
    let expected = format!("problem  {:<12} {problem}\n{:22}hint: {hint}\n", topic.name(), "");
    let found = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!((said.code, found.matches(&expected).count()), (Some(1), 1), "{found}");
}

// proves X2, S3
#[test]
fn a_home_that_is_no_directory_or_cannot_become_one() {
    let world = world();
    let [file, link] = ["file", "link"].map(|name| world.dir().join(name));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(world.dir().join("nowhere"), &link).unwrap();
    let way_out = |what: &str| format!("remove {what}, or set BELAY_HOME to a directory of yours");
    let is = |path: &Path, what: &str| format!("the home {} {what}", path.display());
    for (at, what) in [(&file, "is not a directory"), (&link, "is a symbolic link to nothing")] {
        assert_useless(&world, at, None, FindingTopic::Home, [&is(at, what), &way_out("it")]);
        let below = at.join("deep/below");
        let problem = is(&below, &format!("cannot be made: {} {what}", at.display()));
        assert_useless(
            &world,
            &below,
            None,
            FindingTopic::Home,
            [&problem, &way_out(&at.display().to_string())],
        );
        assert_useless(&world, at, Some(world.home()), FindingTopic::Home, [&is(at, what), &way_out("it")]);
    }
    assert!(file.is_file() && link.is_symlink(), "nothing was touched");
    // A link to a directory is as good as a directory.
    std::fs::create_dir(world.dir().join("nowhere")).unwrap();
    let said = world.belay_with(["run", "echo", "well"], |command| {
        command.env("BELAY_HOME", &link);
    });
    assert_eq!(said.ok().stdout, b"well\n");
    let said = world.belay_with(["down", "--stop-tasks"], |command| {
        command.env("BELAY_HOME", &link);
    });
    said.ok();
}

// proves X2, S3
#[test]
fn a_runtime_directory_that_is_no_directory_or_cannot_become_one() {
    let world = world();
    let file = world.dir().join("file");
    std::fs::write(&file, "").unwrap();
    let shown = file.display();
    let [is_file, below] = ["", "/deep/below"].map(|below| format!("the runtime directory {shown}{below}"));
    let way_out = "or set BELAY_RUNTIME_DIR to a directory of yours";
    let told = [format!("{is_file} is not a directory"), format!("remove it, {way_out}")];
    assert_useless(
        &world,
        world.home(),
        Some(&file),
        FindingTopic::Socket,
        told.each_ref().map(String::as_str),
    );
    let told =
        [format!("{below} cannot be made: {shown} is not a directory"), format!("remove {shown}, {way_out}")];
    let deep = file.join("deep/below");
    assert_useless(
        &world,
        world.home(),
        Some(&deep),
        FindingTopic::Socket,
        told.each_ref().map(String::as_str),
    );
}
