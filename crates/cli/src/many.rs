//! The same call for several tasks over one connection, with many calls pending at once.

use std::collections::{HashMap, HashSet, VecDeque};

use belay_client::{Client, ClientError, Message, decode};
use belay_protocol::RpcError;
use belay_protocol::methods::{Method, Notification};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::context::Context;
use crate::error::CliError;

/// How many calls are pending at once.
pub(crate) const WINDOW: usize = 2048;

/// What to do after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Done,
    /// Make the call for the same task again.
    Again,
    /// No other reply is needed.
    Enough,
}

/// A call that the daemon has refused, for scripts.
#[derive(Debug, Serialize)]
pub(crate) struct Refused<'a> {
    pub(crate) id: &'a str,
    pub(crate) error: &'a RpcError,
}

/// Makes the call once for each id; `answer` gets the replies in the order in which they arrive.
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
    if waiting.is_empty() {
        return Ok(());
    }
    let mut client = context.connect()?;
    let mut asked = HashMap::new();
    loop {
        // A daemon whose replies are not read stops reading calls.
        while asked.len() < WINDOW
            && (asked.is_empty() || !has_answered(&client))
            && let Some(id) = waiting.pop_front()
        {
            asked.insert(client.send::<M>(&ask(id))?, id);
        }
        if asked.is_empty() {
            return Ok(());
        }
        let response = match client.receive()? {
            Message::Response(response) => response,
            Message::Notification(said) => {
                part(context, said)?;
                continue;
            }
            _ => continue,
        };
        let Some(id) = asked.remove(&response.id) else { continue };
        let result = match response.result {
            Ok(raw) => Ok(decode::<M>(&raw)?),
            Err(ClientError::Rpc(error)) => Err(error),
            Err(error) => return Err(error.into()),
        };
        match answer(context, id, result)? {
            Next::Done => {}
            Next::Again => waiting.push_back(id),
            Next::Enough => return Ok(()),
        }
    }
}

fn has_answered(client: &Client) -> bool {
    let mut fds = [PollFd::new(client, PollFlags::IN)];
    client.has_buffered()
        || rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
