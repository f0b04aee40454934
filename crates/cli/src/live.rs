//! Attending a running task: its output to our streams, our input to it, and signals passed on. `run` attends as its caller,
//! `attach` as a viewer; both use this one loop.

mod end;
mod engine;
mod feed;
mod hand;
mod input;
mod key;
mod modes;
mod orders;
mod ours;
mod picture;
mod prefix;
mod show;
mod signals;
mod sink;
mod words;

use belay_protocol::task::TaskStartParams;

use crate::caller::ProcStatus;
use crate::context::Context;
use crate::error::CliError;
pub(crate) use engine::Live;
pub(crate) use hand::Hand;
pub(crate) use ours::{Ours, size_for_task};
pub(crate) use picture::{RECENT_BYTES, Recent};
#[cfg(test)]
pub(crate) use words::explanation;

/// Why we are here.
#[derive(Debug)]
pub(crate) enum Role {
    /// We start it and wait for it in the foreground: what is done to us is done to it.
    Caller(Box<TaskStartParams>),
    /// We are the shell that somebody called: nothing we do shows that there is a task, but that it can be detached.
    Shell(Box<TaskStartParams>),
    /// We look on: we may leave, and it goes on.
    Viewer { id: String },
}

/// What becomes of our standard input.
#[derive(Debug)]
pub(crate) enum Input {
    Nothing,
    /// Its bytes go to the task; whether its end does too.
    Bytes {
        close: bool,
    },
    /// The descriptor itself goes to the task.
    Handed(Hand),
    /// The keys of a terminal that is ours: everything but the detach prefix goes to the task.
    Keys(Ours),
}

/// Everything that differs between those who use the loop.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) role: Role,
    pub(crate) input: Input,
    /// Where its output is shown from; none if it is not shown.
    pub(crate) from: Option<belay_protocol::output::OutputFrom>,
    /// What is put on our terminal before that.
    pub(crate) opening: Vec<u8>,
    pub(crate) json: bool,
}

impl Role {
    /// What we start, if we do.
    fn params(&self) -> Option<&TaskStartParams> {
        match self {
            Self::Caller(params) | Self::Shell(params) => Some(params),
            Self::Viewer { .. } => None,
        }
    }
}

impl Plan {
    pub(crate) fn go(self, context: &mut Context, status: ProcStatus) -> Result<u8, CliError> {
        self.begin(context, status)?.run()
    }

    /// Everything up to the start itself: if this fails, nothing has been started.
    pub(crate) fn begin(self, context: &mut Context, status: ProcStatus) -> Result<Live<'_>, CliError> {
        let token = self.role.params().and_then(|params| params.token.clone());
        let token = token.map_or_else(belay_client::random_token, Ok)?;
        Live::begin(context, self, token, status)
    }
}

/// Starts a task and stays with it.
pub(crate) fn foreground(
    context: &mut Context,
    params: TaskStartParams,
    json: bool,
    status: ProcStatus,
) -> Result<u8, CliError> {
    let ours = if params.spec.pty().is_some() && !json { Ours::find() } else { None };
    let input = match ours {
        Some(ours) => {
            if let Some(key) = key::prefix()? {
                context.hint(&format!("{} d detaches", key::name(key)));
            }
            Input::Keys(ours)
        }
        None if params.spec.shell().is_some_and(|shell| shell.stdin) => Input::Bytes { close: true },
        None => Input::Nothing,
    };
    let from = params.follow.map(|follow| belay_protocol::output::OutputFrom::Offset { offset: follow.from });
    Plan { role: Role::Caller(Box::new(params)), input, from, opening: Vec::new(), json }.go(context, status)
}
