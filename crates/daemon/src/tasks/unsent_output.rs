//! Ended tasks whose output is in the memory of their shims and on its way to followers. The shim keeps it until every follower
//! has it: a daemon that dies before that can read it there.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use belay_protocol::shim::{ProcessId, ToShim};
use belay_record::LogReader;

use super::{TaskEnded, Tasks};
use crate::config::bounds;
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::input::{ClientId, ShimId};
use crate::runtime::{Core, Index, Stage, Timer};

/// Which clients still need the output of which ended task.
#[derive(Debug, Default)]
pub(super) struct UnsentOutput {
    tasks: HashMap<String, Unsent>,
    by_client: Index<ClientId, String>,
}

#[derive(Debug)]
struct Unsent {
    shim: ShimId,
    clients: BTreeSet<ClientId>,
}

impl UnsentOutput {
    fn add(&mut self, task: &str, shim: ShimId, clients: BTreeSet<ClientId>) {
        for client in &clients {
            self.by_client.add(*client, task.to_owned());
        }
        self.tasks.insert(task.to_owned(), Unsent { shim, clients });
    }

    /// A client needs the output of this task no longer. Returns the shim if no other client does.
    fn remove(&mut self, client: ClientId, task: &str) -> Option<ShimId> {
        self.by_client.remove(&client, task);
        let unsent = self.tasks.get_mut(task)?;
        unsent.clients.remove(&client);
        if !unsent.clients.is_empty() {
            return None;
        }
        self.tasks.remove(task).map(|unsent| unsent.shim)
    }
}

impl Tasks {
    /// Whether output of an ended task is on its way to this client.
    pub(crate) fn owes_output(&self, client: ClientId) -> bool {
        self.unsent_output.by_client.count(&client) > 0
    }
}

impl<H: Host> Core<H> {
    /// Whether the shim has to keep the output of an ended task for now. It is acknowledged later, then.
    pub(super) fn keep_in_shim(&mut self, ended: &TaskEnded, shim: ShimId) -> bool {
        if ended.info().output.on_disk || ended.info().output.bytes == 0 {
            return false;
        }
        let follows = ended.follows().iter();
        let clients: BTreeSet<ClientId> =
            follows.filter_map(|follow| Some(self.tasks.follows.get(follow)?.client())).collect();
        if clients.is_empty() {
            return false;
        }
        self.tasks.unsent_output.add(ended.id(), shim, clients);
        true
    }

    /// Everything that was sent to a client has left. Output of ended tasks that it does not follow any more has reached it.
    pub(crate) fn output_has_left(&mut self, client: ClientId) {
        let waiting: Vec<String> = self.tasks.unsent_output.by_client.of(&client).cloned().collect();
        for task in waiting {
            let follows = self.requests.client(client).map(|client| client.follows().to_vec());
            let is_of_task =
                |follow: &u64| self.tasks.follows.get(follow).is_some_and(|follow| follow.task() == task);
            if !follows.unwrap_or_default().iter().any(is_of_task) {
                self.output_not_needed(client, &task);
            }
        }
    }

    /// A client has gone: what was on its way to it is not needed.
    pub(crate) fn drop_unsent_output(&mut self, client: ClientId) {
        let waiting: Vec<String> = self.tasks.unsent_output.by_client.of(&client).cloned().collect();
        for task in waiting {
            self.output_not_needed(client, &task);
        }
    }

    fn output_not_needed(&mut self, client: ClientId, task: &str) {
        let Some(shim) = self.tasks.unsent_output.remove(client, task) else { return };
        // The end is durable, unless the journal could not be written: then something waits for that.
        let stage = if self.has_uncommitted() { Stage::AfterReplies } else { Stage::Unconditional };
        self.acknowledge_end(shim, task.to_owned(), stage);
    }

    /// The shim may forget its task and serve again.
    pub(super) fn acknowledge_end(&mut self, shim: ShimId, task: String, stage: Stage) {
        self.ctx.effects.push(stage, Effect::ToShim { shim, message: ToShim::Ack { task } });
        self.ctx.effects.push(stage, Effect::CrashPoint(CrashPoint::AfterAck));
    }

    /// An earlier daemon recorded the end of this task and died before it acknowledged the end to the shim. The output may not have reached the
    /// caller, which has some time to come back for it.
    pub(crate) fn end_of_orphan(
        &mut self,
        shim: ShimId,
        task: String,
        process: ProcessId,
        memory: Option<[i32; 2]>,
    ) {
        let log = memory.and_then(|numbers| self.ctx.host.memory_log(process, numbers).ok()).map(Arc::new);
        let Some(log) = log.filter(|_| !self.tasks.contains(&task)) else {
            return self.ctx.tell_shim(shim, ToShim::Ack { task });
        };
        let bytes = LogReader::in_memory(Arc::clone(&log)).map_or(0, |log| log.end());
        self.tasks.keep_memory(&task, bytes, Some(log));
        self.ctx.schedule(bounds::CALLER_MS, Timer::OrphanOutput(shim, task));
    }

    /// The caller had its time to come back.
    pub(crate) fn orphan_output_due(&mut self, shim: ShimId, task: String) {
        self.ctx.tell_shim(shim, ToShim::Ack { task });
    }
}
