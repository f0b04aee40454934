//! Work that is too long for one step of the core: it is done in slices, and between two slices others are served.

use std::collections::VecDeque;

use belay_model::StopOrder;

use crate::host::Host;
use crate::requests::{Caller, ReplyId};
use crate::runtime::Core;
use belay_protocol::task::StopFence;

/// How many items of a backlog one step takes.
const SLICE: usize = 64;

#[derive(Debug)]
pub(crate) enum Work {
    /// Stop these tasks.
    Stop {
        tasks: VecDeque<String>,
        order: StopOrder,
        /// Who stops them, if owners of lanes are to be fenced for it.
        fence_for: Option<Caller>,
    },
    /// Send the next piece of output to this subscription.
    SendOutput(u64),
    /// Send the next page of events to this follower.
    SendEvents(u64),
    /// Continue this `event/read`.
    ReadEvents(ReplyId),
}

impl<H: Host> Core<H> {
    /// Whether the core wants an [`Input::Continue`](crate::input::Input::Continue).
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Does the first slice at once; the rest follows in later steps, before what waits already.
    pub(crate) fn do_in_slices(&mut self, work: Work) {
        self.backlog.push_front(work);
        self.continue_backlog();
    }

    /// Does this in a later step.
    pub(crate) fn do_later(&mut self, work: Work) {
        self.backlog.push_back(work);
    }

    pub(crate) fn continue_backlog(&mut self) {
        let Some(work) = self.backlog.pop_front() else { return };
        match work {
            Work::SendOutput(follow) => self.send_queued(follow),
            Work::SendEvents(follow) => self.send_queued_events(follow),
            Work::ReadEvents(reply) => self.reply_due(reply),
            Work::Stop { mut tasks, order, fence_for } => {
                for _ in 0..SLICE {
                    let Some(task) = tasks.pop_front() else { break };
                    if let Some(caller) = &fence_for {
                        self.fence_owner(caller, &task, &order, StopFence::Auto);
                    }
                    self.order_stop(&task, order.clone());
                }
                if !tasks.is_empty() {
                    self.backlog.push_front(Work::Stop { tasks, order, fence_for });
                }
            }
        }
    }
}
