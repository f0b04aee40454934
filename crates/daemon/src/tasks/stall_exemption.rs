//! Tasks that wait for tasks they have started: their shims get a message that they need not make progress themselves. Whether a task
//! is stalled is decided by its shim.

use belay_protocol::shim::ToShim;

use crate::host::Host;
use crate::runtime::Core;

impl<H: Host> Core<H> {
    /// Tells the shim of this task whether the task waits for children, if that has changed or the shim has just been adopted.
    /// Only shims of tasks with a stall limit get the message.
    pub(crate) fn update_stall_exemption(&mut self, id: Option<&str>) {
        let Some(task) = id.and_then(|id| self.tasks.get(id)) else { return };
        let Some(shim) = task.shim.filter(|_| task.stored.doc.stall().is_some()) else { return };
        let on = self.tasks.has_children(task.id());
        if self.shims.set_waits_on_children(shim, on) {
            self.ctx.tell_shim(shim, ToShim::Excuse { on });
        }
    }
}
