//! `belay wait`: until tasks have ended, or one of their lines matches, or they are silent; all of them, or so many.
//! With one id and nothing but its end to wait for, the exit code is the task's own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use belay_protocol::RpcError;
use belay_protocol::methods::TaskWait;
use belay_protocol::output::{OutputSearchCursor, StreamName};
use belay_protocol::task::{
    OutputMatchParams, TaskInfo, TaskStatus, TaskWaitParams, TaskWaitResult, WaitMet, WaitUntil,
};

use crate::args::{Stream, WaitArgs};
use crate::context::Context;
use crate::duration::{self, millis};
use crate::error::CliError;
use crate::many::{self, Next, Refused};
use crate::outcome;
use crate::ui::human;
use crate::ui::text::one_line;

/// The longest wait that a daemon takes; longer ones are asked for again.
const LONGEST: Duration = Duration::from_mins(10);

pub(crate) fn run(args: &WaitArgs, context: &mut Context) -> Result<u8, CliError> {
    let wanted = args.any.map_or(usize::MAX, |any| any as usize);
    if args.any.is_some() && (wanted > args.ids.len() || args.ids.len() > many::WINDOW) {
        let message = format!(
            "{wanted} of {} cannot be waited for",
            human::count(args.ids.len() as u64, "task", "tasks")
        );
        return Err(CliError::usage(message)
            .hint(format!("--any N takes at least N tasks, and at most {}", many::WINDOW)));
    }
    let waiting = Waiting {
        args,
        deadline: args.timeout.map(|limit| Instant::now() + limit),
        begun: RefCell::default(),
    };
    let mut codes = Vec::new();
    many::each::<TaskWait>(
        context,
        &args.ids,
        |id| waiting.params(id),
        |context, id, result| {
            let Some(code) = waiting.answer(context, id, result)? else { return Ok(Next::Again) };
            codes.push(code);
            context.out.flush()?;
            Ok(if codes.len() >= wanted { Next::Enough } else { Next::Done })
        },
    )?;
    Ok(codes.into_iter().max().unwrap_or(0))
}

struct Waiting<'a> {
    args: &'a WaitArgs,
    deadline: Option<Instant>,
    /// Of those that are asked about again: the id, because a name may mean another one by then, and how far the output has been
    /// looked through.
    begun: RefCell<HashMap<String, (String, Option<OutputSearchCursor>)>>,
}

impl Waiting<'_> {
    fn params(&self, text: &str) -> TaskWaitParams {
        let begun = self.begun.borrow().get(text).cloned();
        let (id, cursor) = begun.unwrap_or_else(|| (text.to_owned(), None));
        let left =
            self.deadline.map_or(LONGEST, |at| at.saturating_duration_since(Instant::now()).min(LONGEST));
        let matching = self.args.matching.clone().map(|pattern| OutputMatchParams {
            pattern,
            after: self.args.after,
            stream: self.args.stream.map(|stream| match stream {
                Stream::Stdout => StreamName::Stdout,
                Stream::Stderr => StreamName::Stderr,
            }),
            cursor,
            text: true,
        });
        TaskWaitParams {
            timeout_ms: Some(millis(left)),
            matching,
            silence_ms: self.args.silence.map(millis),
            until: if self.args.started { WaitUntil::Started } else { WaitUntil::Ended },
            ..TaskWaitParams::for_end(&id)
        }
    }

    /// The exit code that an answer stands for; none if it is to be asked again.
    fn answer(
        &self,
        context: &mut Context,
        id: &str,
        result: Result<TaskWaitResult, RpcError>,
    ) -> Result<Option<u8>, CliError> {
        let waited = match result {
            Ok(waited) => waited,
            Err(error) => {
                if self.args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                let error = CliError::from(error);
                context.complain(&error);
                return Ok(Some(error.exit_code()));
            }
        };
        let over = self.deadline.is_some_and(|at| Instant::now() >= at);
        if waited.met == WaitMet::Timeout && !over {
            let cursor = waited.next.map(|next| next.cursor);
            self.begun.borrow_mut().insert(id.to_owned(), (waited.id, cursor));
            return Ok(None);
        }
        if self.args.json {
            context.out.json(&waited)?;
        } else {
            self.tell(context, &waited)?;
        }
        Ok(Some(self.code(&waited)))
    }

    fn tell(&self, context: &mut Context, waited: &TaskWaitResult) -> Result<(), CliError> {
        let id = &waited.id;
        let told = match (waited.met, &waited.line) {
            (WaitMet::Ended, _) if self.args.matching.is_some() => {
                context.note(&format!("no line of {id} matched"));
                line(&waited.task)
            }
            (WaitMet::Ended, _) => line(&waited.task),
            (WaitMet::Match, Some(found)) => {
                // At a terminal every line ends with one.
                let text = found.line.text.as_deref().unwrap_or_default();
                format!("{id} matched at {}: {}", found.line.offset, text.strip_suffix('\r').unwrap_or(text))
            }
            (WaitMet::Started, _) => format!("{id} has started"),
            (WaitMet::Turn, _) => format!("{id} has ended its turn"),
            (WaitMet::InputNeeded, _) => format!("{id} needs input"),
            (WaitMet::Silence, _) => {
                format!("{id} wrote nothing for {}", duration::format(self.args.silence.unwrap_or_default()))
            }
            (WaitMet::Match | WaitMet::Timeout | WaitMet::Detached, _) => {
                let limit = duration::format(self.args.timeout.unwrap_or_default());
                context.note(&format!(
                    "{id} is still {} after {limit}",
                    outcome::status_name(waited.task.status)
                ));
                return Ok(());
            }
        };
        context.out.line(&one_line(&told))
    }

    fn code(&self, waited: &TaskWaitResult) -> u8 {
        let for_end = self.args.matching.is_none() && self.args.silence.is_none() && !self.args.started;
        match waited.met {
            WaitMet::Match | WaitMet::Silence | WaitMet::Started | WaitMet::Turn | WaitMet::InputNeeded => 0,
            // Only a caller in the foreground is told of a detach, which this command is not.
            WaitMet::Timeout | WaitMet::Detached => 1,
            WaitMet::Ended if !for_end => 1,
            WaitMet::Ended if self.args.ids.len() == 1 => outcome::exit_code(&waited.task),
            WaitMet::Ended => u8::from(waited.task.status != TaskStatus::Completed),
        }
    }
}

pub(crate) fn line(task: &TaskInfo) -> String {
    let ran = task.started_at.zip(task.ended_at).map(|(from, to)| human::took(human::between(from, to)));
    let ran = ran.map(|ran| format!(", after {ran}")).unwrap_or_default();
    format!("{} {}{ran}", task.id, outcome::sentence(task))
}
