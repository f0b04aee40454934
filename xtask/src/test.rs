//! `cargo xtask test`: everything that has to hold before a change is taken, step by step, until the first failure.

use std::path::Path;
use std::time::Instant;

use crate::processes::Watch;
use crate::run::{Outcome, cargo, command, lines, succeed, succeeds_quietly};
use crate::{codegen, generate, interop, rights, tidy};

/// Programs that the tests use, and the Debian package of each.
const PROGRAMS: &[(&str, &str)] = &[
    ("bash", "bash"),
    ("setpriv", "util-linux"),
    ("setsid", "util-linux"),
    ("script", "bsdutils"),
    ("cc", "gcc"),
    ("sh", "dash"),
    ("tmux", "tmux"),
    ("vim", "vim"),
    ("less", "less"),
    ("ps", "procps"),
    ("top", "procps"),
    ("python3", "python3"),
];

/// Makes the tests do what takes minutes, too.
const LONG: &str = "BELAY_TEST_LONG";

pub(crate) fn run(long: bool) -> Outcome {
    let began = Instant::now();
    step("rights", rights::check)?;
    step("tools", tools)?;
    step("format", || succeed(&mut cargo(&["fmt", "--all", "--check"])))
        .map_err(|error| format!("{error}\n  what to do: cargo fmt --all"))?;
    step("lints", || {
        succeed(&mut cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
    })?;
    step("build", || {
        succeed(&mut cargo(&["build", "--workspace", "--quiet"]))?;
        succeed(&mut cargo(&["build", "--package", "belay-os", "--examples", "--quiet"]))
    })?;
    let watch = Watch::begin()?;
    let mut tally = Tally::default();
    let tested = step("tests", || tests(long, &mut tally));
    let left = step("nothing left behind", || watch.end());
    if tested.is_err() {
        println!("{} passed, {} failed", tally.passed, tally.failed.max(1));
    }
    tested.and(left)?;
    step("generated files", || generate::run(true))?;
    step("house rules", tidy::run)?;
    let types = fetched("types for other languages", codegen::prepare, codegen::Ready::check)?;
    let agents = fetched("agents", || interop::prepare(&[]), interop::Ready::check)?;
    println!("\nall of it in {} s", began.elapsed().as_secs());
    for missing in types.into_iter().chain(agents) {
        println!("{missing}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(())
}

/// A step with programs that have to be fetched first; or why they could not be, which is no fault of what is tested here.
fn fetched<T>(
    name: &str,
    prepare: impl FnOnce() -> Outcome<T>,
    check: impl FnOnce(&T) -> Outcome,
) -> Outcome<Option<String>> {
    println!("\n== {name}: fetching");
    match prepare() {
        Ok(ready) => step(name, || check(&ready)).map(|()| None),
        Err(why) => {
            let missing = format!("{name}: NOT tried: {why}");
            println!("== {missing}");
            Ok(Some(missing))
        }
    }
}

fn step(name: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    println!("\n== {name}");
    let began = Instant::now();
    let result = work();
    let seconds = began.elapsed().as_secs_f64();
    match result {
        Ok(()) => println!("== {name}: good ({seconds:.1} s)"),
        Err(error) => return Err(format!("{name}: {error}").into()),
    }
    Ok(())
}

fn tools() -> Outcome {
    for (verb, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !succeeds_quietly(&mut cargo(&[verb, "--version"])) {
            let mut add = command("rustup", &["component", "add", component]);
            succeed(&mut add)
                .map_err(|_| format!("{component} is missing: rustup component add {component}"))?;
        }
    }
    provide(PROGRAMS)
}

/// Sees to it that these programs are there: each with the Debian package that has it.
pub(crate) fn provide(programs: &[(&str, &str)]) -> Outcome {
    let missing: Vec<&(&str, &str)> = programs.iter().filter(|(program, _)| !is_there(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", ");
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    let by_hand = format!("{names} missing: apt-get install {}", packages.join(" "));
    let root = rustix::process::getuid().is_root();
    if !root || !Path::new("/etc/debian_version").exists() {
        return Err(by_hand.into());
    }
    println!("{by_hand}");
    succeed(&mut command("apt-get", &["update", "-qq"]))?;
    let mut words = vec!["install", "-y", "-qq", "--no-install-recommends"];
    words.extend(packages);
    succeed(command("apt-get", &words).env("DEBIAN_FRONTEND", "noninteractive"))
}

pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// How many tests there were.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 0 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else { return };
        let counts = rest.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => self.passed += number,
                Some("failed") => self.failed += number,
                _ => {}
            }
        }
    }
}

/// Everything that `cargo test` finds, documentation tests included.
fn tests(long: bool, tally: &mut Tally) -> Outcome {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    if long {
        command.env(LONG, "1");
    }
    let status = lines(&mut command, |line| {
        println!("{line}");
        tally.add(line);
    })?;
    if !status.success() {
        return Err(format!("{} failed; their names stand above under `failures:`", tally.failed).into());
    }
    if tally.passed == 0 {
        return Err("cargo reported no test at all".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn results_are_added_up_and_everything_else_is_passed_over() {
        let mut tally = Tally::default();
        tally.add("test a ... ok");
        tally.add(
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
        );
        tally.add("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tally, Tally { passed: 5, failed: 1 });
    }
}
