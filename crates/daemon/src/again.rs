//! Starts that a daemon died over before any shim had them. The environment was in its memory alone; but whoever asked with a
//! token asks again, and then the task goes on where it was: the same id, the same place in its lane.

use belay_protocol::error::RpcError;
use belay_protocol::life::{End, StartError, StartStage};
use belay_protocol::task::{StartParams, Status};

use crate::answer::Caller;
use crate::config::bounds;
use crate::core::{Core, Timer};
use crate::doc::Entry;
use crate::fingerprint;
use crate::record::journal_error;
use crate::rights::make_token;
use crate::world::World;

impl<W: World> Core<W> {
    /// Nothing of this task was ever started. Whoever wanted it may say so again for a while; one who gave no token cannot.
    pub(crate) fn await_start(&mut self, id: &str) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let nobody = task.entry.token.is_none() || task.entry.doc.hook.is_some();
        if nobody || task.entry.doc.boot != self.boot {
            return self.end_not_handed_over(id);
        }
        task.shim = None;
        task.entry.doc.shim = None;
        task.entry.doc.status = Status::Queued;
        task.begin_again(true);
        let number = task.entry.number;
        let key = self.arm(bounds::CALLER_MS, Timer::Start(number));
        if let Some(task) = self.tasks.get_mut(id) {
            task.unsaid = Some(key);
        }
        self.changed.push(id.to_owned());
    }

    pub(crate) fn start_is_due(&mut self, number: u64) {
        let is_it = |task: &crate::core::Task| task.entry.number == number && task.unsaid.is_some();
        let found = self.tasks.iter().find(|(_, task)| is_it(task)).map(|(id, _)| id.clone());
        if let Some(id) = found {
            self.end_not_handed_over(&id);
        }
    }

    fn end_not_handed_over(&mut self, task: &str) {
        let message = "the daemon died while handing the command over: it was not started".to_owned();
        let error = StartError { stage: StartStage::Holder, errno: 0, message };
        self.end_unstarted(task, End::Spawn { error });
    }

    /// The start is said again, by somebody who has been found to mean the same.
    pub(crate) fn start_again(
        &mut self,
        caller: &Caller,
        params: StartParams,
        mut entry: Entry,
    ) -> Result<(), RpcError> {
        let id = entry.id.clone();
        let token = make_token(&id, &self.random::<16>()?);
        entry.doc.proof = fingerprint::keyed(&self.key, token.as_bytes());
        let ready = self.make_ready(&params);
        let mut start = self.start_message(&params, ready, &entry, &token)?;
        start.held = entry.doc.lane.as_ref().is_some_and(|seat| seat.generation.is_none());
        let shim = self.take_ready(&mut entry, start.held);
        self.put(&entry);
        if let Err(error) = self.commit() {
            // It waits on, and can be said once more.
            self.batch.put.retain(|row| row.id != id);
            self.ready.extend(shim);
            return Err(journal_error(&error));
        }
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        (task.entry, task.start) = (entry, Some(start));
        let due = task.unsaid.take();
        self.expect_nobody(due);
        self.hand_out(caller, &params, &id, shim);
        self.answer_started(&id);
        Ok(())
    }
}
