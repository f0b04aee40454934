//! `cargo xtask bench`: what Belay costs, against the bare mechanism and peers in the same run.

mod capture;
mod cli;
mod fan_out;
mod foreground;
mod idle;
mod journal;
mod lease;
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
mod stop;
mod world;

use std::time::Instant;

use self::report::Report;
use crate::run::{Outcome, bin_dir, cargo, command, succeed};

type Work = fn(&mut Report) -> Outcome;

/// Every work, in the order of the report.
const WORKS: &[(&str, Work)] = &[
    ("start", start::run),
    ("cli", cli::run),
    ("foreground", foreground::run),
    ("rate", rate::run),
    ("capture", capture::run),
    ("stop", stop::run),
    ("rpc", rpc::run),
    ("lease", lease::run),
    ("fan-out", fan_out::run),
    ("memory", memory::run),
    ("many", many::run),
    ("sessions", sessions::run),
    ("idle", idle::run),
    ("journal", journal::run),
];

pub(crate) fn run(names: &[&str]) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| WORKS.iter().all(|(known, _)| known != *name)) {
        let known: Vec<&str> = WORKS.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no work {unknown:?}; there are {}", known.join(", ")).into());
    }
    if cfg!(debug_assertions) {
        return run_released(names);
    }
    // What the daemons leave when they are killed comes back to us and is reaped.
    belay_os::tree::become_subreaper()?;
    let mut report = Report::begin();
    for (name, work) in WORKS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let began = Instant::now();
        eprintln!("{name} …");
        work(&mut report).map_err(|error| format!("{name}: {error}"))?;
        eprintln!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    }
    println!("{}", report.table());
    if names.is_empty() {
        report.write()?;
    }
    report.verdict();
    Ok(())
}

/// Measures nothing in a debug build: builds product and tool as they are shipped, and lets that tool do it.
fn run_released(names: &[&str]) -> Outcome {
    succeed(&mut cargo(&["build", "--release", "--package", "belay", "--package", "xtask"]))?;
    let debug = bin_dir()?;
    let released = debug.with_file_name("release").join("xtask");
    let mut words = vec!["bench"];
    words.extend(names);
    succeed(&mut command(released, &words))
}
