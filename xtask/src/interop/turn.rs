//! One turn of an agent with a scripted model: started, watched, cancelled, and never left behind.

use std::fs::File;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use belay_os::Signal;
use belay_os::process::{identity, signal_identity};

use super::agents::Agent;
use super::install::Shelf;
use super::model::{Model, Step};
use super::speech::ToolResult;
use super::stage::{Stage, holds, text_of, wait_for};
use crate::run::{Outcome, start};

/// With which every script ends, and so every turn that is not cancelled.
pub(crate) const LAST_WORDS: &str = "These are the last words.";

#[derive(Debug)]
pub(crate) struct Turn<'a> {
    stage: &'a Stage,
    model: Model,
    child: Child,
}

impl<'a> Turn<'a> {
    /// The model calls the shell tool once, and then says its last words.
    pub(crate) fn begin(
        shelf: &Shelf,
        agent: Agent,
        stage: &'a Stage,
        shell: &Path,
        call: Step,
    ) -> Outcome<Self> {
        let model = Model::start(vec![call, Step::Say(LAST_WORDS)])?;
        let mut command = agent.turn(&shelf.program(agent), shell, &model);
        let given: Vec<_> =
            command.get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect();
        command.env_clear().envs(given);
        stage.settle(&mut command, &shelf.path());
        // Whoever asks for something outside asks the model, which writes it down and refuses.
        command.env("HTTPS_PROXY", model.address()).env("NO_PROXY", "127.0.0.1,localhost");
        command.stdin(Stdio::null()).stdout(File::create(stage.file("said"))?);
        command.stderr(File::create(stage.file("complained"))?);
        let child = start(&mut command).map_err(|error| format!("cannot run {}: {error}", agent.name()))?;
        Ok(Self { stage, model, child })
    }

    /// What the model was told of the tool call.
    pub(crate) fn result(&mut self) -> Outcome<ToolResult> {
        wait_for("the tool's result to arrive at the model", || {
            let result = self.model.results().into_iter().next();
            let gone = self.child.try_wait()?;
            match (result, gone) {
                (Some(result), _) => Ok(Ok(result)),
                (None, None) => Ok(Err(self.seen())),
                (None, Some(status)) => {
                    Err(format!("the agent ended ({status}) without a result: {}", self.seen()).into())
                }
            }
        })
    }

    /// The end of a turn that nobody cancelled.
    pub(crate) fn finish(mut self) -> Outcome {
        let status = self.wait()?;
        let said = text_of(&self.stage.file("said"));
        holds("the turn to end with the model's last words", said.contains(LAST_WORDS), &self.seen())?;
        holds("the agent to exit with 0", status.success(), &self.seen())
    }

    pub(crate) fn wait(&mut self) -> Outcome<ExitStatus> {
        wait_for("the end of the agent", || Ok(self.child.try_wait()?.ok_or_else(|| self.seen())))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Outcome {
        let agent = i32::try_from(self.child.id()).ok().and_then(identity).ok_or("the agent is gone")?;
        Ok(signal_identity(agent, signal).map(drop)?)
    }

    /// For whoever wonders what went wrong.
    fn seen(&self) -> String {
        let (said, complained) = (text_of(&self.stage.file("said")), text_of(&self.stage.file("complained")));
        let end = |text: &str| {
            let skip = text.chars().count().saturating_sub(1500);
            text.chars().skip(skip).collect::<String>()
        };
        let asked = self.model.asked();
        format!("the model: {asked}; the agent: {}{}", end(&said), end(&complained))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // One that has ended is not signalled: its number may be another's by now.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
