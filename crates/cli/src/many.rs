//! The same question about several tasks at once, over one connection. If the daemon goes away meanwhile, what was
//! not answered is asked again of the next one; so only questions that may be asked twice are asked this way.

use std::collections::{HashMap, HashSet, VecDeque};

use belay_client::{Client, Message, decode};
use belay_protocol::RpcError;
use belay_protocol::methods::{Method, Notification};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::context::Context;
use crate::error::{CliError, Kind};

/// How many questions are on their way at once.
pub(crate) const WINDOW: usize = 2048;

/// How often a daemon may go away without having answered anything before we give up.
const MAX_FRUITLESS: u32 = 5;

/// What became of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Done,
    /// Ask about the same task again.
    Again,
    /// Nothing more needs to be known of any of them.
    Enough,
}

/// A question that got an error instead of an answer, for scripts.
#[derive(Debug, Serialize)]
pub(crate) struct Refused<'a> {
    pub(crate) id: &'a str,
    pub(crate) error: &'a RpcError,
}

/// Asks about each id, once however often it is named; `answer` is told in the order in which the answers come.
pub(crate) fn each<M: Method>(
    context: &mut Context,
    ids: &[String],
    ask: impl FnMut(&str) -> M::Params,
    answer: impl FnMut(&mut Context, &str, Result<M::Result, RpcError>) -> Result<Next, CliError>,
) -> Result<(), CliError> {
    each_with_parts::<M>(context, ids, ask, |_, _| Ok(()), answer)
}

/// The same for a call that sends notifications before its result: `part` gets them.
pub(crate) fn each_with_parts<M: Method>(
    context: &mut Context,
    ids: &[String],
    mut ask: impl FnMut(&str) -> M::Params,
    mut part: impl FnMut(&mut Context, Notification) -> Result<(), CliError>,
    mut answer: impl FnMut(&mut Context, &str, Result<M::Result, RpcError>) -> Result<Next, CliError>,
) -> Result<(), CliError> {
    let mut named = HashSet::new();
    let mut waiting: VecDeque<&str> = ids.iter().map(String::as_str).filter(|id| named.insert(*id)).collect();
    let mut fruitless = 0;
    while !waiting.is_empty() {
        let mut client = context.connect()?;
        let mut asked = HashMap::new();
        let result = converse::<M>(&mut client, &mut waiting, &mut asked, &mut ask, &mut |said| {
            fruitless = 0;
            match said {
                Said::Part(said) => part(context, said).map(|()| Next::Done),
                Said::Answer(id, result) => answer(context, id, result),
            }
        });
        // What was asked and not answered is asked again.
        waiting.extend(asked.into_values());
        match result {
            Err(error) if error.kind == Kind::Disconnected && fruitless < MAX_FRUITLESS => fruitless += 1,
            other => return other,
        }
    }
    Ok(())
}

/// What the daemon says about one of the tasks.
enum Said<'a, M: Method> {
    Part(Notification),
    Answer(&'a str, Result<M::Result, RpcError>),
}

type Hear<'a, M> = dyn FnMut(Said<'_, M>) -> Result<Next, CliError> + 'a;

fn converse<'a, M: Method>(
    client: &mut Client,
    waiting: &mut VecDeque<&'a str>,
    asked: &mut HashMap<i64, &'a str>,
    ask: &mut dyn FnMut(&str) -> M::Params,
    hear: &mut Hear<'_, M>,
) -> Result<(), CliError> {
    loop {
        while asked.len() < WINDOW
            && let Some(id) = waiting.pop_front()
        {
            match client.send::<M>(&ask(id)) {
                Ok(number) => asked.insert(number, id),
                Err(error) => {
                    waiting.push_front(id);
                    return Err(error.into());
                }
            };
            // A daemon whose answers nobody reads stops to read questions.
            if has_answered(client) {
                break;
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let response = match client.receive()? {
            Message::Response(response) => response,
            Message::Notification(said) => {
                if let Some(said) = said.parse()? {
                    hear(Said::Part(said))?;
                }
                continue;
            }
        };
        let Some(id) = asked.remove(&response.id) else { continue };
        let result = match response.result {
            Ok(raw) => Ok(decode::<M>(&raw)?),
            Err(error) if error.is_leaving() => {
                waiting.push_front(id);
                return Err(error.into());
            }
            Err(error) => Err(error),
        };
        match hear(Said::Answer(id, result))? {
            Next::Done => {}
            Next::Again => waiting.push_back(id),
            Next::Enough => {
                waiting.clear();
                asked.clear();
                return Ok(());
            }
        }
    }
}

fn has_answered(client: &Client) -> bool {
    let mut fds = [PollFd::new(client, PollFlags::IN)];
    client.has_buffered()
        || rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
