//! Messages of shims: dispatches each one to the subsystem that handles it.

use belay_protocol::shim::{FromShim, Hello, SHIM_PROTOCOL, SHIM_PROTOCOL_OLDEST};

use super::ShimStage;
use crate::host::Host;
use crate::input::ShimId;
use crate::runtime::Core;

impl<H: Host> Core<H> {
    /// All messages of one read are one step and one commit.
    pub(crate) fn shim_messages(&mut self, shim: ShimId, messages: Vec<FromShim>) {
        self.shims.update(shim, |shim| shim.received += 1);
        for message in messages {
            self.shim_message(shim, message);
        }
        self.announce_progress();
    }

    fn shim_message(&mut self, shim: ShimId, message: FromShim) {
        self.steps.set_cause(message.name());
        match message {
            FromShim::Hello(hello) => self.shim_hello(shim, hello),
            FromShim::Ready => self.shim_ready(shim),
            FromShim::Life(item) => self.life_event(shim, item),
            FromShim::Output { bytes } => self.output_grew(shim, bytes),
            FromShim::Memory { numbers } => self.set_output_location(shim, numbers),
            FromShim::Now(now) => self.shim_answered(&now),
            FromShim::Written { write, result } => self.shim_wrote(write, &result),
            FromShim::Room => self.shim_has_room(shim),
            FromShim::Signalled { ask, processes } => self.shim_signalled(ask, processes),
            FromShim::Resized { resize, pty } => self.shim_resized(resize, pty),
        }
    }

    fn shim_hello(&mut self, id: ShimId, hello: Hello) {
        let known = self.shims.update(id, |shim| {
            shim.process = Some(hello.process);
            shim.protocol = hello.protocol;
            shim.cgroup.clone_from(&hello.cgroup);
            (shim.is_orphan, shim.stage == ShimStage::AwaitingHello && shim.task.is_some(), shim.task.clone())
        });
        let Some((is_orphan, is_reconnected, task)) = known else { return };
        let (memory, pty) = (hello.memory, hello.spec.as_ref().and_then(|spec| spec.pty));
        if !(SHIM_PROTOCOL_OLDEST..=SHIM_PROTOCOL).contains(&hello.protocol) {
            // The shim keeps its task and the task's end for a daemon that supports its protocol.
            let holds = task.unwrap_or_else(|| "no task".to_owned());
            let message =
                format!("the shim of {holds} speaks protocol {}, which this daemon does not", hello.protocol);
            self.ctx.notice(message, "run belay down, then any command of the newer belay");
            return self.give_up_on_shim(id);
        }
        if is_orphan {
            self.orphan_hello(id, hello);
        } else if is_reconnected {
            self.shim_reconnected(id, hello.task, hello.queued);
        }
        self.set_output_location(id, memory);
        self.terminal_adopted(id, pty);
    }
}
