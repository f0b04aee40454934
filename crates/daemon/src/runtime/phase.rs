//! The phases of a daemon: adopting, serving, leaving. When it changes from one to the next, and what it waits for before it
//! exits.

use belay_protocol::event::Event;

use crate::effect::Effect;
use crate::host::Host;
use crate::runtime::{Core, Stage, Timer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Shims of an earlier daemon are being reconnected; clients wait in the listen queue.
    Adopting,
    Serving,
    /// Nothing new is started; the daemon exits when the last reply it owes is sent.
    Leaving,
}

impl<H: Host> Core<H> {
    /// Whether clients may connect.
    pub fn is_serving(&self) -> bool {
        self.ctx.phase != Phase::Adopting
    }

    /// Serves clients once every task of the earlier daemon is accounted for.
    pub(crate) fn start_serving_when_adopted(&mut self) {
        if self.ctx.phase == Phase::Adopting && self.shims.is_adoption_complete() {
            self.start_serving();
        }
    }

    /// Every task of the earlier daemon is accounted for, or its shim has not answered in time.
    pub(crate) fn start_serving(&mut self) {
        if self.ctx.phase == Phase::Adopting {
            self.ctx.phase = Phase::Serving;
            let unanswered = self.shims.unresponsive().count();
            tracing::info!(tasks = self.tasks.len(), unanswered, "serving");
            self.resume_budget_sampling();
            self.resume_lanes();
            self.resume_sessions();
            self.remove_leftover_dirs();
            self.retention.look_soon();
        }
        let deadline = self.shims.take_adoption_deadline();
        self.ctx.cancel(deadline);
    }

    /// Leaves once the replies it owes are sent. Tasks run on.
    pub(crate) fn leave(&mut self, why: &str) {
        self.leave_after(&[], why);
    }

    /// Leaves once these tasks have been stopped, too. Calls that wait for the end of one of them are answered first.
    pub(crate) fn leave_after(&mut self, stopped: &[String], why: &str) {
        if self.ctx.phase == Phase::Leaving {
            return;
        }
        self.ctx.phase = Phase::Leaving;
        tracing::info!(why, tasks = self.tasks.len(), stopping = stopped.len(), "leaving");
        self.ctx.record(Event::DaemonStopping, String::new());
        self.refuse_pending_replies(stopped);
    }

    /// A leaving daemon that owes nothing writes its journal to the end and exits.
    pub(crate) fn exit_when_done(&mut self) {
        if self.ctx.phase != Phase::Leaving
            || !self.requests.is_empty()
            || self.has_backlog()
            || self.tasks.is_sending_last_output()
        {
            return;
        }
        self.drop_acknowledged_completions();
        self.commit_or_retry();
        if !self.ctx.journal.is_batch_empty() || self.retention.is_removing() {
            return;
        }
        self.flush_journal();
        if !self.ctx.journal.has_flushed_last() {
            return;
        }
        self.send_all_delayed_lines();
        self.ctx.effects.release_delayed();
        self.ctx.effects.push(Stage::Unconditional, Effect::Exit);
    }

    /// Arms the idle timer when the daemon holds no task, lease or client, and disarms it otherwise.
    pub(crate) fn watch_idleness(&mut self) {
        let is_empty =
            self.requests.client_count() == 0 && self.tasks.is_empty() && !self.sessions.has_running_lease();
        let is_idle = is_empty && self.ctx.phase == Phase::Serving;
        match (is_idle, self.idle, self.ctx.config.idle_exit) {
            (true, None, Some(after)) => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                self.idle = Some(self.ctx.schedule(ms, Timer::Idle));
            }
            (false, Some(_), _) => {
                let timer = self.idle.take();
                self.ctx.cancel(timer);
            }
            _ => {}
        }
    }
}
