//! `call/cancel`: gives up a pending call of the same connection.

use belay_protocol::call::{CallCancelParams, CallCancelResult};
use belay_protocol::error::{ErrorKind, RpcError};

use super::{Answer, Caller};
use crate::host::Host;
use crate::runtime::Core;
use crate::tasks::StartReply;

impl<H: Host> Core<H> {
    pub(super) fn call_cancel(&mut self, caller: &Caller, params: &CallCancelParams) -> Answer {
        let is_meant = |reply: &super::ReplyId| {
            self.requests.caller(*reply).is_some_and(|other| other.request.as_ref() == Some(&params.request))
        };
        let reply = self.requests.of_client(caller.client).into_iter().find(is_meant);
        let cancelled_caller = Caller { request: Some(params.request.clone()), ..caller.clone() };
        let Some(reply) = reply else {
            let cancelled = self.cancel_start_output(&cancelled_caller);
            if cancelled {
                self.fail(&cancelled_caller, error());
            }
            return caller.answer(&CallCancelResult { cancelled });
        };
        let foreground = self.requests.reply::<StartReply>(reply).and_then(StartReply::foreground_task);
        let foreground = foreground.map(str::to_owned);
        if self.requests.survives_client(reply) {
            // What it does goes on, and nothing can be said of it yet.
            self.requests.forget_caller(reply);
            self.fail(&cancelled_caller, error());
        } else if let Some((waiter, _)) = self.take_any_reply(reply) {
            self.fail(&waiter.caller, error());
        }
        self.cancel_start_output(&cancelled_caller);
        if let Some(task) = foreground {
            self.caller_gave_up(&task, caller.client);
        }
        caller.answer(&CallCancelResult { cancelled: true })
    }
}

fn error() -> RpcError {
    RpcError::new(ErrorKind::Cancelled, "the call was cancelled by call/cancel")
}
