//! The stop watchdog: if a shim receives a stop and then sends no message at all, it is considered
//! stuck, and the stop is carried out without it.

use belay_model::Level;
use belay_protocol::life::StopOrderInfo;
use belay_protocol::shim::ToShim;
use belay_record::convert::Wire as _;

use super::lost::RECONNECT_TRIES;
use crate::config::bounds;
use crate::host::Host;
use crate::input::ShimId;
use crate::runtime::{Core, Timer};

impl<H: Host> Core<H> {
    /// Handles a stop of a task whose shim cannot be reached: keeps it until the shim is reached,
    /// or carries it out without it.
    pub(crate) fn stop_unreachable(&mut self, id: ShimId, order: StopOrderInfo, patience_ms: u64) {
        let tries = self.shims.update(id, |shim| {
            // A second stop can only raise the level.
            let is_harder =
                |kept: &StopOrderInfo| Level::from_wire(order.level) > Level::from_wire(kept.level);
            if shim.stop.as_ref().is_none_or(is_harder) {
                shim.stop = Some(order);
            }
            shim.tries
        });
        match tries {
            Some(tries) if tries > RECONNECT_TRIES => self.reap_lost_shim(id, false),
            // The shim may accept a connection and never answer.
            Some(tries) => {
                let task = self.shims.task_of(id);
                tracing::info!(task, tries, "stop is kept until the shim can be reached");
                self.arm_watchdog(id, patience_ms + bounds::SHIM_ANSWER_MS);
            }
            None => {}
        }
    }

    /// Arms the watchdog: after `in_ms`, checks whether the shim has sent anything since now.
    pub(crate) fn arm_watchdog(&mut self, id: ShimId, in_ms: u64) {
        let timer = self.ctx.schedule(in_ms, Timer::StopWatchdog(id));
        let older = self.shims.update(id, |shim| {
            shim.received_when_asked = shim.received;
            shim.watchdog.replace(timer)
        });
        self.ctx.cancel(older.flatten());
    }

    /// Disarms the watchdog: no stop is pending at the shim.
    pub(crate) fn disarm_watchdog(&mut self, id: ShimId) {
        let timer = self.shims.update(id, |shim| shim.watchdog.take());
        self.ctx.cancel(timer.flatten());
    }

    /// A stop takes longer than it should. A shim that has sent anything is working on it. A shim
    /// that has sent nothing is suspended or stuck: the stop is carried out without it.
    pub(crate) fn check_stop_progress(&mut self, id: ShimId) {
        let checked = self.shims.update(id, |shim| {
            shim.watchdog = None;
            (shim.task.clone(), shim.received > shim.received_when_asked)
        });
        let Some((Some(task), is_heard)) = checked else { return };
        if is_heard {
            tracing::debug!(task, "stop takes long; the shim works on it");
            let query = self.ctx.next_number();
            self.ctx.tell_shim(id, ToShim::Query { query });
            return self.arm_watchdog(id, bounds::SHIM_ANSWER_MS);
        }
        let message =
            format!("the shim of task {task} did not carry out a stop: it is killed with its process tree");
        self.ctx.notice(message, "the shim may have been suspended, or short of memory");
        self.reap_lost_shim(id, false);
    }
}
