//! Tasks that wait for tasks which they have started: their shims are told that they need not get on themselves. Whether one
//! does not get on is judged by its shim.

use belay_protocol::shim::ToShim;

use crate::core::{Core, ShimStage};
use crate::event::Action;
use crate::world::World;

impl<W: World> Core<W> {
    /// Tells the shim of this task whether the task waits for others, if that has changed or the shim has just been found. Only
    /// tasks that are looked at are worth the words.
    pub(crate) fn excuse(&mut self, id: Option<&str>) {
        let Some((id, task)) = id.and_then(|id| Some((id, self.tasks.get(id)?))) else { return };
        let Some(shim) = task.shim.filter(|_| task.entry.doc.clocks.stall.is_some()) else { return };
        let on = self.tasks.values().any(|child| child.entry.parent.as_deref() == Some(id));
        let Some(state) = self.shims.get_mut(&shim).filter(|shim| shim.stage == ShimStage::Holding) else {
            return;
        };
        if state.excused.replace(on) != Some(on) {
            self.actions.push(Action::ToShim { shim, message: ToShim::Excuse { on } });
        }
    }
}
