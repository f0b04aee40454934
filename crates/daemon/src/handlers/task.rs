//! `task/get write signal remove`: looking at a task, talking to it, forgetting it. Listing is in `task_list`, ending in
//! `task_stop`.

use belay_model::State;
use belay_os::signal::Signal;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::shim::ToShim;
use belay_protocol::task::{GetParams, RemoveParams, RemoveResult, SignalParams, SignalResult, WriteParams};

use super::check::check_text;
use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::Core;
use crate::event::Action;
use crate::record::journal_error;
use crate::world::World;

impl<W: World> Core<W> {
    pub(crate) fn task_get(&mut self, caller: &Caller, params: &GetParams) {
        let entry = match self.find(caller, &params.id) {
            Ok(entry) => entry,
            Err(error) => return self.fail(caller, error),
        };
        let id = entry.id.clone();
        if let Some(shim) = self.tasks.get(&id).and_then(|task| task.shim) {
            // The shim knows its clocks and sums; if it does not answer, the answer goes without them.
            let query =
                self.promise(caller.clone(), What::Inspect { task: id }, Some(bounds::SHIM_ANSWER_MS));
            self.actions.push(Action::ToShim { shim, message: ToShim::Query { query } });
            return;
        }
        if let Some(info) = self.live_info(&id, true, None) {
            return self.reply(caller, &info);
        }
        self.reply(caller, &Self::ended_info(&entry));
    }

    pub(crate) fn task_write(&mut self, caller: &Caller, params: WriteParams) {
        let found = check_text("key", params.key.as_deref(), bounds::NAME_BYTES)
            .and_then(|()| check_room(params.room_ms))
            .and_then(|()| self.find(caller, &params.id))
            .and_then(|entry| self.check_fence(caller, &entry).map(|()| entry));
        let id = match found {
            Ok(entry) => entry.id,
            Err(error) => return self.fail(caller, error),
        };
        let shim = self.tasks.get(&id).and_then(|task| task.shim);
        if self.tasks.get(&id).is_some_and(|task| matches!(task.state, State::Queued { .. })) {
            let error = RpcError::new(ErrorKind::Busy, "the task waits for its turn and reads nothing yet");
            let refusal = error.field("id").hint("try again when it runs");
            return self.refuse_when_room(caller.clone(), id, refusal, params.room_ms);
        }
        let Some(shim) = shim else { return self.fail(caller, not_running()) };
        let WriteParams { data, close, key, room_ms, .. } = params;
        let what = What::Write { task: id, bytes: data.0.len() as u64, room_ms };
        let write = self.promise(caller.clone(), what, Some(bounds::SHIM_ANSWER_MS));
        let message = ToShim::Write { write, data, close, key, room: room_ms.is_some() };
        self.actions.push(Action::ToShim { shim, message });
    }

    pub(crate) fn task_signal(&mut self, caller: &Caller, params: &SignalParams) {
        if let Err(error) = self.try_signal(caller, params) {
            self.fail(caller, error);
        }
    }

    fn try_signal(&mut self, caller: &Caller, params: &SignalParams) -> Result<(), RpcError> {
        let signal = Signal::from_name(&params.signal).ok_or_else(|| {
            let shown: String = params.signal.chars().filter(|c| !c.is_control()).take(30).collect();
            RpcError::invalid("signal", format!("there is no signal {shown:?}"))
                .hint("INT, TERM, USR1, HUP, or a number; kill -l lists them")
        })?;
        let entry = self.find(caller, &params.id)?;
        self.check_fence(caller, &entry)?;
        let id = entry.id;
        let shim = self.tasks.get(&id).and_then(|task| task.shim).ok_or_else(not_running)?;
        let session = self.tasks.get(&id).map(|task| task.entry.session.clone()).unwrap_or_default();
        let by = self.actor(caller, None);
        let ask =
            self.promise(caller.clone(), What::Signal { task: id.clone() }, Some(bounds::SHIM_ANSWER_MS));
        self.emit(&Event::TaskSignalled { task: id, session, signal: signal.name().to_owned(), by });
        self.actions.push(Action::ToShim { shim, message: ToShim::Signal { ask, signal: signal.as_raw() } });
        Ok(())
    }

    pub(crate) fn shim_signalled(&mut self, ask: u64, processes: u64) {
        if let Some(Pending { what: What::Signal { task }, caller, .. }) = self.take_pending(ask) {
            self.reply(&caller, &SignalResult { id: task, processes });
        }
    }

    pub(crate) fn task_remove(&mut self, caller: &Caller, params: &RemoveParams) {
        let entry = match self.find(caller, &params.id) {
            Ok(entry) => entry,
            Err(error) => return self.fail(caller, error),
        };
        if self.tasks.contains_key(&entry.id) {
            let message = format!("task {} has not ended", entry.id);
            let error = RpcError::new(ErrorKind::WrongState, message).field("id");
            return self.fail(caller, error.hint(format!("stop it first: belay stop {}", entry.id)));
        }
        let freed_bytes = self.forget(&entry);
        match self.commit_removals() {
            Ok(()) => self.reply(caller, &RemoveResult { id: entry.id, freed_bytes }),
            Err(error) => self.fail(caller, journal_error(&error)),
        }
    }
}

fn check_room(room_ms: Option<u64>) -> Result<(), RpcError> {
    if room_ms.is_some_and(|ms| ms > bounds::ROOM_MS) {
        let message = format!("nobody waits for room for more than {} ms at a time", bounds::ROOM_MS);
        return Err(RpcError::invalid("room_ms", message).hint("ask again then"));
    }
    Ok(())
}

pub(crate) fn not_running() -> RpcError {
    RpcError::new(ErrorKind::WrongState, "the task does not run, so nothing can be written or sent to it")
        .field("id")
}
