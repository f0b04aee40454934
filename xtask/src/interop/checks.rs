//! What has to hold for every agent whose shell is Belay. Each check has a place of its own, and says what it expected and
//! what it saw.

use std::path::Path;

use belay_os::process::is_alive;
use belay_os::{Identity, Signal};
use belay_protocol::task::{TaskStatus, TaskStopResult};

use super::agents::Agent;
use super::install::Shelf;
use super::stage::{Stage, alive, holds, none_of, same, wait_for};
use super::turn::Turn;
use crate::run::Outcome;

/// What nobody waits for to end.
const SLEEPER: &str = "sleep 86399";

/// A tree that is hard to get: one child in a session of its own with nobody above it, one that ignores SIGHUP.
const TREE: &str = "(setsid sleep 86399 &); nohup sleep 86399 >/dev/null 2>&1 & echo ready; sleep 86399";

/// How many sleepers that makes.
const SLEEPERS: usize = 3;

/// A check of one agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) shelf: &'a Shelf,
    pub(crate) agent: Agent,
}

impl Case<'_> {
    fn begin<'s>(&self, stage: &'s Stage, line: &str) -> Outcome<Turn<'s>> {
        Turn::begin(self.shelf, self.agent, stage, &stage.shell(), self.agent.shell(line))
    }

    /// The model is told the same as with a real shell, byte by byte, and a person sees a task.
    pub(crate) fn same_as_bash(self) -> Outcome {
        let line = "echo out; echo err >&2; exit 3";
        let told = |shell: Option<&Path>| -> Outcome<_> {
            let stage = Stage::new()?;
            let shell = shell.map_or_else(|| stage.shell(), Path::to_owned);
            let mut turn = Turn::begin(self.shelf, self.agent, &stage, &shell, self.agent.shell(line))?;
            let mut result = turn.result()?;
            result.text = stage.masked(&result.text);
            turn.finish()?;
            Ok((result, stage))
        };
        let (real, stage) = told(Some(Path::new("/bin/bash")))?;
        stage.end()?;
        let (ours, stage) = told(None)?;
        same("the tool's result with belay, against the one with bash", &real, &ours)?;
        let ends: Vec<_> = stage.tasks(line)?.iter().map(|task| (task.status, code(task))).collect();
        same("the task in belay ps -a --json", &vec![(TaskStatus::Failed, Some(3))], &ends)?;
        stage.end()
    }

    /// Detached by somebody else, the call returns at once with the task's id, and the task loses nothing.
    pub(crate) fn detached(self) -> Outcome {
        let stage = Stage::new()?;
        let gate = stage.file("gate");
        let line = format!("echo begin; until [ -e {} ]; do sleep 0.05; done; echo end", gate.display());
        let mut turn = self.begin(&stage, &line)?;
        let task = stage.running("echo begin; until")?;
        let logs = || stage.belay(&["logs", "--raw", &task.id]);
        wait_for("its first line", || Ok(if logs()? == "begin\n" { Ok(()) } else { Err(logs()?) }))?;
        stage.belay(&["detach", &task.id])?;
        let told = turn.result()?.text;
        let after = told.strip_prefix("begin\n").unwrap_or_default();
        let is_told = after.starts_with("belay: detached by ") && after.contains(&task.id);
        holds("the output so far, and a line with the task's id", is_told, &told)?;
        turn.finish()?;
        same("its status after the turn", &TaskStatus::Running, &stage.inspect(&task.id)?.status)?;
        std::fs::write(&gate, "")?;
        same("its status at the end", &TaskStatus::Completed, &stage.ended(&task.id)?.status)?;
        same("what belay logs --raw has", &"begin\nend\n".to_owned(), &logs()?)?;
        stage.end()
    }

    /// Stopped by somebody else, the whole tree is gone, and the agent goes on with its turn.
    pub(crate) fn stopped(self) -> Outcome {
        let stage = Stage::new()?;
        let mut turn = self.begin(&stage, TREE)?;
        stop(&stage)?;
        turn.result()?;
        turn.finish()?;
        stage.end()
    }

    /// When the agent is told to give up, the whole tree is gone, whatever the agent does about it.
    pub(crate) fn cancelled(self, signal: Signal) -> Outcome {
        let stage = Stage::new()?;
        let mut turn = self.begin(&stage, TREE)?;
        let task = stage.running(SLEEPER)?;
        let tree = stage.tree(&task.id, SLEEPER, SLEEPERS)?;
        turn.signal(signal)?;
        turn.wait()?;
        same("the task's status", &TaskStatus::Cancelled, &stage.ended(&task.id)?.status)?;
        gone(&task.id, &tree)?;
        stage.end()
    }

    /// What the agent itself put into the background is a task like others. None if the agent has no such thing.
    pub(crate) fn in_background(self) -> Outcome<bool> {
        let Some(call) = self.agent.shell_in_background(TREE) else { return Ok(false) };
        let stage = Stage::new()?;
        let mut turn = Turn::begin(self.shelf, self.agent, &stage, &stage.shell(), call)?;
        turn.result()?;
        stop(&stage)?;
        turn.finish()?;
        stage.end()?;
        Ok(true)
    }
}

fn code(task: &belay_protocol::task::TaskInfo) -> Option<i32> {
    task.outcome.as_ref().and_then(belay_protocol::task::Outcome::exit_code)
}

/// Stops the one task with the tree, with proof, and looks whether the proof is true.
fn stop(stage: &Stage) -> Outcome {
    let task = stage.running(SLEEPER)?;
    let tree = stage.tree(&task.id, SLEEPER, SLEEPERS)?;
    let said = stage.belay(&["stop", &task.id, "--json"])?;
    let stopped: TaskStopResult = serde_json::from_str(&said)?;
    let receipt = stopped.receipt.as_ref();
    let is_proof = receipt.is_some_and(|receipt| receipt.survivors.is_empty() && receipt.empty_at.is_some());
    holds("a receipt without survivors", is_proof, &said)?;
    same("the task's status", &Some(TaskStatus::Cancelled), &stopped.status)?;
    gone(&task.id, &tree)
}

/// Nothing of the tree lives: none that was seen in it, and none that carries the task's name.
fn gone(id: &str, tree: &[Identity]) -> Outcome {
    let left: Vec<&Identity> = tree.iter().filter(|process| is_alive(**process)).collect();
    same("those of the tree that live", &Vec::new(), &left)?;
    let mark = format!("{}={id}", belay_protocol::vars::TASK);
    none_of(&alive(&mark))
        .map_err(|seen| format!("expected: nothing of {id} to live\n    seen: {seen}").into())
}
