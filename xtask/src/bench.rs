//! `cargo xtask bench`: what Belay costs, against the bare mechanism and peers, or against another binary, in the same run.

mod bystander;
mod capture;
mod cli;
mod comparison;
mod down;
mod fan_out;
mod filled;
mod follow;
mod foreground;
mod gc;
mod idle;
mod journal;
mod leaderless;
mod lease;
mod list;
mod live;
mod many;
mod measure;
mod memory;
pub(crate) mod parts;
mod peers;
mod rate;
mod report;
mod rpc;
mod sessions;
mod start;
mod steps;
mod stop;
mod subject;
mod value;
mod wire;
mod world;

use std::path::{Path, PathBuf};
use std::time::Instant;

use self::comparison::Comparison;
use self::report::{Measured, Report};
use self::subject::{Role, Subject};
use crate::run::{Outcome, bin_dir, cargo, command, succeed};

struct Work {
    name: &'static str,
    run: fn(&Subject, &mut Report) -> Outcome,
    /// How many rounds a comparison of binaries has, if the command line does not say.
    rounds: usize,
    /// Which binaries of a comparison can do it.
    is_for: fn(Role) -> bool,
}

const fn work(name: &'static str, run: fn(&Subject, &mut Report) -> Outcome, rounds: usize) -> Work {
    Work { name, run, rounds, is_for: |_| true }
}

/// Every work, in the order of the report.
const WORKS: &[Work] = &[
    work("start", start::run, 11),
    work("cli", cli::run, 11),
    work("foreground", foreground::run, 7),
    work("rate", rate::run, 11),
    work("capture", capture::run, 7),
    work("stop", stop::run, 9),
    work("rpc", rpc::run, 11),
    work("lease", lease::run, 11),
    work("fan-out", fan_out::run, 9),
    work("memory", memory::run, 5),
    work("many", many::run, 7),
    work("sessions", sessions::run, 5),
    work("idle", idle::run, 5),
    work("journal", journal::run, 5),
    work("live", live::run, 5),
    work("gc", gc::run, 5),
    work("follow", follow::run, 7),
    work("leaderless", leaderless::run, 5),
    work("list", list::run, 5),
    work("down", down::run, 3),
    // Binaries without a report of their steps do not survive this load either.
    Work { is_for: |role| matches!(role, Role::New), ..work("steps", steps::run, 2) },
];

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    names: Vec<String>,
    against: Option<PathBuf>,
    has_noise: bool,
    rounds: Option<usize>,
    report: Option<PathBuf>,
    /// Measure once, as in one round of a comparison, and write the values to this file.
    values: Option<PathBuf>,
}

impl Options {
    fn parse(words: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match *word {
                "--against" => options.against = Some(value()?.into()),
                "--report" => options.report = Some(value()?.into()),
                "--values" => options.values = Some(value()?.into()),
                "--rounds" => options.rounds = Some(value()?.parse()?),
                "--noise" => options.has_noise = true,
                name if WORKS.iter().any(|work| work.name == name) => options.names.push(name.to_owned()),
                unknown => {
                    let known: Vec<&str> = WORKS.iter().map(|work| work.name).collect();
                    return Err(format!("no such work: {unknown}; works: {}", known.join(", ")).into());
                }
            }
        }
        let only_compared = options.has_noise || options.rounds.is_some() || options.report.is_some();
        if options.against.is_none() && only_compared {
            return Err("--noise, --rounds and --report need --against".into());
        }
        Ok(options)
    }

    fn works(&self) -> impl Iterator<Item = &'static Work> {
        let names = &self.names;
        WORKS.iter().filter(|work| names.is_empty() || names.iter().any(|name| name == work.name))
    }
}

pub(crate) fn run(words: &[&str]) -> Outcome {
    let options = Options::parse(words)?;
    if cfg!(debug_assertions) {
        return run_released(words);
    }
    // Processes that a killed daemon leaves become children of this process and are reaped.
    belay_os::tree::become_subreaper()?;
    let result = match (&options.against, &options.values) {
        (_, Some(path)) => measure_once(&options, path),
        (None, None) => run_alone(&options),
        (Some(old), None) => compare(&options, Subject::compared(old, options.has_noise)?),
    };
    world::kill_descendants();
    result
}

fn run_alone(options: &Options) -> Outcome {
    let subject = Subject::alone()?;
    let mut report = Report::begin();
    for work in options.works() {
        let began = Instant::now();
        eprintln!("{} …", work.name);
        (work.run)(&subject, &mut report).map_err(|error| format!("{}: {error}", work.name))?;
        eprintln!("{}: {:.1} s", work.name, began.elapsed().as_secs_f64());
    }
    println!("{}", report.table());
    if options.names.is_empty() {
        report.write()?;
    }
    report.verdict();
    Ok(())
}

/// One round of a comparison that another build of this tool makes.
fn measure_once(options: &Options, path: &Path) -> Outcome {
    let subject = Subject { is_compared: true, ..Subject::alone()? };
    let mut report = Report::begin();
    for work in options.works() {
        (work.run)(&subject, &mut report).map_err(|error| format!("{}: {error}", work.name))?;
    }
    Ok(std::fs::write(path, serde_json::to_string(&report.measured())?)?)
}

/// What a work yields for one binary in one round. A binary whose own tool lies beside it is measured by that tool, because
/// its protocol may differ.
fn measure(work: &Work, subject: &Subject) -> (Vec<Measured>, Vec<String>, Outcome) {
    let Some(tool) = &subject.tool else {
        let mut report = Report::begin();
        let result = (work.run)(subject, &mut report);
        return (report.measured(), report.notes().to_vec(), result);
    };
    let measured = || -> Outcome<Vec<Measured>> {
        let file = std::env::temp_dir().join(format!("belay-bench-{}.json", std::process::id()));
        let path = file.to_str().ok_or("the path of the temporary directory is not UTF-8")?;
        succeed(&mut command(tool, &["bench", work.name, "--values", path]))?;
        let values = std::fs::read_to_string(&file)?;
        std::fs::remove_file(&file)?;
        Ok(serde_json::from_str(&values)?)
    };
    match measured() {
        Ok(values) => (values, Vec::new(), Ok(())),
        Err(error) => (Vec::new(), Vec::new(), Err(error)),
    }
}

/// Runs every work for each binary in turns. A binary that fails at a work is left out of the rest of its rounds.
fn compare(options: &Options, subjects: Vec<Subject>) -> Outcome {
    let mut comparison = Comparison::new(options.has_noise, Report::begin().machine());
    for work in options.works() {
        let began = Instant::now();
        let mut failed: Vec<Role> = Vec::new();
        for round in 0..options.rounds.unwrap_or(work.rounds) {
            for at in measure::order(subjects.len(), round) {
                let subject = &subjects[at];
                if failed.contains(&subject.role) || !(work.is_for)(subject.role) {
                    continue;
                }
                eprintln!("{}, round {}, {} …", work.name, round + 1, subject.role.name());
                let (values, notes, result) = measure(work, subject);
                comparison.add(subject.role, round, &values, &notes);
                if let Err(error) = result {
                    let note = format!("{}: {} failed: {error}", work.name, subject.role.name());
                    eprintln!("{note}");
                    comparison.note(note);
                    failed.push(subject.role);
                    world::kill_descendants();
                }
            }
        }
        if !subjects.iter().all(|subject| (work.is_for)(subject.role)) {
            comparison.note(format!("{}: measured with the new binary only", work.name));
        }
        eprintln!("{}: {:.1} s", work.name, began.elapsed().as_secs_f64());
    }
    let text = comparison.text();
    println!("{text}");
    if let Some(path) = &options.report {
        std::fs::write(path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Builds product and tool as they are shipped, and runs that tool: a debug build measures nothing.
fn run_released(words: &[&str]) -> Outcome {
    succeed(&mut cargo(&["build", "--release", "--package", "belay", "--package", "xtask"]))?;
    let debug = bin_dir()?;
    let released = debug.with_file_name("release").join("xtask");
    let mut all = vec!["bench"];
    all.extend(words);
    // The paths on the command line are relative to the directory of the caller.
    succeed(command(released, &all).current_dir(std::env::current_dir()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_works_and_binaries() {
        let words = ["gc", "--against", "old", "--noise", "live", "--rounds", "3", "--report", "out.md"];
        let options = Options::parse(&words).unwrap();
        assert_eq!(options.names, ["gc", "live"]);
        assert_eq!(options.against, Some(PathBuf::from("old")));
        assert_eq!((options.has_noise, options.rounds), (true, Some(3)));
        let names: Vec<&str> = options.works().map(|work| work.name).collect();
        assert_eq!(names, ["live", "gc"]);
    }

    #[test]
    fn options_without_old_binary_are_refused() {
        for words in [&["--noise"][..], &["--rounds", "3"], &["--report", "x"], &["--against"], &["unknown"]]
        {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
