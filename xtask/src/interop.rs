//! `cargo xtask interop`: real coding agents with Belay as their shell and a script as their model, so that all of it is
//! done on this machine alone.

mod agents;
mod checks;
mod install;
mod model;
mod speech;
mod stage;
mod turn;

use std::time::Instant;

use self::agents::Agent;
use self::checks::Case;
use self::install::Shelf;
use crate::processes::Watch;
use crate::run::{Outcome, cargo, succeed};

/// The agents, ready to be tried.
#[derive(Debug)]
pub(crate) struct Ready {
    shelf: Shelf,
    agents: Vec<Agent>,
}

pub(crate) fn run(names: &[&str]) -> Outcome {
    let ready = prepare(names)?;
    succeed(&mut cargo(&["build", "--package", "belay", "--quiet"]))?;
    ready.check()
}

/// Gets the agents of these names, or all of them.
pub(crate) fn prepare(names: &[&str]) -> Outcome<Ready> {
    let is_known = |name: &&str| Agent::ALL.iter().any(|agent| agent.name() == *name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = Agent::ALL.iter().map(|agent| agent.name()).collect();
        return Err(format!("there is no agent {unknown:?}; there are {}", known.join(", ")).into());
    }
    let is_asked = |agent: &Agent| names.is_empty() || names.contains(&agent.name());
    let agents: Vec<Agent> = Agent::ALL.iter().copied().filter(is_asked).collect();
    Ok(Ready { shelf: Shelf::fill(&agents)?, agents })
}

impl Ready {
    pub(crate) fn check(&self) -> Outcome {
        let watch = Watch::begin()?;
        let mut failed = 0;
        for agent in &self.agents {
            failed += check_agent(Case { shelf: &self.shelf, agent: *agent });
        }
        watch.end()?;
        if failed == 0 { Ok(()) } else { Err(format!("{failed} checks failed").into()) }
    }
}

/// How many checks failed.
fn check_agent(case: Case<'_>) -> usize {
    let mut results = vec![
        tell(case, "the same result as with bash", || case.same_as_bash().map(|()| true)),
        tell(case, "detached from outside", || case.detached().map(|()| true)),
        tell(case, "stopped from outside", || case.stopped().map(|()| true)),
    ];
    for (name, signal) in case.agent.cancels() {
        results.push(tell(case, &format!("cancelled by {name}"), || case.cancelled(*signal).map(|()| true)));
    }
    results.push(tell(case, "in the agent's background", || case.in_background()));
    results.iter().filter(|good| !**good).count()
}

/// Whether the check was good, or there was nothing to check.
fn tell(case: Case<'_>, name: &str, check: impl FnOnce() -> Outcome<bool>) -> bool {
    let agent = case.agent.name();
    let began = Instant::now();
    let result = check();
    let seconds = began.elapsed().as_secs_f64();
    match &result {
        Ok(true) => println!("{agent}: {name}: good ({seconds:.1} s)"),
        Ok(false) => println!("{agent}: {name}: it has none"),
        Err(error) => println!("{agent}: {name}: FAILED ({seconds:.1} s)\n    {error}"),
    }
    result.is_ok()
}
