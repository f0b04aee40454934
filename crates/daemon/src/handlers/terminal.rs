//! `task/resize`, and what a terminal changes about a start. The terminal itself is the shim's.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::ToShim;
use belay_protocol::task::{ResizeParams, ResizeResult, Size};

use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::Core;
use crate::event::{Action, ShimId};
use crate::world::World;

/// What a terminal is called whose caller has none: what the most programs know how to use.
pub(crate) const TERM: &str = "TERM=xterm-256color";

/// A terminal without rows or columns divides some programs by zero.
pub(crate) fn check_size(field: &str, size: Size) -> Result<(), RpcError> {
    if size.rows == 0 || size.cols == 0 {
        let message = "a terminal has at least one row and one column";
        return Err(RpcError::invalid(field, message).hint("24 rows and 80 columns are usual"));
    }
    Ok(())
}

/// The task has ended, or is not held by anybody now.
pub(crate) fn no_terminal_now(id: &str) -> RpcError {
    let message = format!("task {id} does not run, so its terminal has no size to change");
    RpcError::new(ErrorKind::WrongState, message)
        .field("id")
        .hint(format!("belay inspect {id} says how it is"))
}

fn no_terminal(id: &str) -> RpcError {
    RpcError::new(ErrorKind::WrongState, format!("task {id} has no terminal"))
        .field("id")
        .hint("start it with --pty to give it one")
}

impl<W: World> Core<W> {
    pub(crate) fn task_resize(&mut self, caller: &Caller, params: &ResizeParams) {
        if let Err(error) = self.resize(caller, params) {
            self.fail(caller, error);
        }
    }

    fn resize(&mut self, caller: &Caller, params: &ResizeParams) -> Result<(), RpcError> {
        let size = Size { rows: params.rows, cols: params.cols };
        check_size(if size.rows == 0 { "rows" } else { "cols" }, size)?;
        let entry = self.find(caller, &params.id)?;
        if entry.doc.pty.is_none() {
            return Err(no_terminal(&entry.id));
        }
        let id = entry.id;
        let Some(task) = self.tasks.get_mut(&id) else { return Err(no_terminal_now(&id)) };
        match (task.shim, &mut task.start) {
            // Not handed over yet: it starts with the new size.
            (_, Some(start)) => {
                start.pty = Some(size);
                self.terminal_of(&id, size);
                self.reply(caller, &ResizeResult { id, rows: size.rows, cols: size.cols });
            }
            (Some(shim), None) => {
                let what = What::Resize { task: id };
                let resize = self.promise(caller.clone(), what, Some(bounds::SHIM_ANSWER_MS));
                self.actions.push(Action::ToShim { shim, message: ToShim::Resize { resize, size } });
            }
            (None, None) => return Err(no_terminal_now(&id)),
        }
        Ok(())
    }

    pub(crate) fn shim_resized(&mut self, resize: u64, pty: Option<Size>) {
        let Some(Pending { what: What::Resize { task }, caller, .. }) = self.take_pending(resize) else {
            return;
        };
        let Some(size) = pty else { return self.fail(&caller, no_terminal(&task)) };
        self.terminal_of(&task, size);
        self.reply(&caller, &ResizeResult { id: task, rows: size.rows, cols: size.cols });
    }

    /// What a shim that was found again says of the terminal it holds: it may have changed when nobody wrote it down.
    pub(crate) fn terminal_is(&mut self, shim: ShimId, pty: Option<Size>) {
        let task = self.shims.get(&shim).and_then(|shim| shim.task.clone());
        if let (Some(task), Some(size)) = (task, pty) {
            self.terminal_of(&task, size);
        }
    }

    /// Notes the size of a terminal, so that it is in every list and outlives this daemon.
    fn terminal_of(&mut self, id: &str, size: Size) {
        let Some(task) = self.tasks.get_mut(id).filter(|task| task.entry.doc.pty != Some(size)) else {
            return;
        };
        task.entry.doc.pty = Some(size);
        if !self.changed.iter().any(|changed| changed == id) {
            self.changed.push(id.to_owned());
        }
    }
}
