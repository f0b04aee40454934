//! `task/resize`: changes the size of a task's terminal. The terminal itself belongs to the shim.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::ToShim;
use belay_protocol::task::{TaskResizeParams, TaskResizeResult, TerminalSize};

use super::{StoredTask, TaskEnded, TaskRef};
use crate::config::bounds;
use crate::host::Host;
use crate::input::ShimId;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter, shim_unanswered};
use crate::runtime::Core;

/// The terminal type for a caller without one: most programs support it.
pub(crate) const TERM: &str = "TERM=xterm-256color";

/// Some programs divide by the number of rows or columns.
pub(crate) fn check_size(field: &str, size: TerminalSize) -> Result<(), RpcError> {
    if size.rows == 0 || size.cols == 0 {
        let message = "a terminal has at least one row and one column";
        return Err(RpcError::invalid(field, message).hint("24 rows and 80 columns are usual"));
    }
    Ok(())
}

/// The error for a task that has ended or has no shim now.
fn no_terminal_now(id: &str) -> RpcError {
    let message = format!("task {id} is not running, so its terminal cannot be resized");
    RpcError::new(ErrorKind::WrongState, message)
        .field("id")
        .hint(format!("belay inspect {id} shows its state"))
}

fn no_terminal(id: &str) -> RpcError {
    RpcError::new(ErrorKind::WrongState, format!("task {id} has no terminal"))
        .field("id")
        .hint("start it with --pty to give it one")
}

/// A resize that waits for the shim's answer.
#[derive(Debug)]
pub(crate) struct ResizeReply {
    task: String,
}

impl Reply for ResizeReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.fail(&waiter.caller, no_terminal_now(&self.task));
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, shim_unanswered("the size may have been changed"));
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_resize(
        &mut self,
        caller: &Caller,
        params: TaskResizeParams,
    ) -> Result<Answer, RpcError> {
        let size = TerminalSize { rows: params.rows, cols: params.cols };
        check_size(if size.rows == 0 { "rows" } else { "cols" }, size)?;
        self.with_task(caller, &params.id, move |core, caller, task| core.resize(caller, &task, size))
    }

    fn resize(&mut self, caller: &Caller, task: &TaskRef, size: TerminalSize) -> Result<Answer, RpcError> {
        let id = task.id().to_owned();
        let has_pty = |stored: &StoredTask| stored.doc.spec.pty().is_some();
        let has_pty = match task {
            TaskRef::Live(id) => self.tasks.get(id).is_some_and(|task| has_pty(&task.stored)),
            TaskRef::Ended(stored) => has_pty(stored),
        };
        if !has_pty {
            return Err(no_terminal(&id));
        }
        let Some(live) = self.tasks.get(&id) else { return Err(no_terminal_now(&id)) };
        match (live.shim, &live.start) {
            // The start has not been sent to a shim yet: the task starts with the new size.
            (_, Some(_)) => {
                self.tasks.update(&id, |task| {
                    if let Some(start) = &mut task.start {
                        start.pty = Some(size);
                    }
                });
                self.store_terminal_size(&id, size);
                Ok(caller.answer(&TaskResizeResult { id, rows: size.rows, cols: size.cols }))
            }
            (Some(shim), None) => {
                let reply = ResizeReply { task: id };
                let resize = self.defer_reply(caller.clone(), reply, Some(bounds::SHIM_ANSWER_MS));
                self.ctx.tell_shim(shim, ToShim::Resize { resize: resize.0, size });
                Ok(Answer::Later)
            }
            (None, None) => Err(no_terminal_now(&id)),
        }
    }

    pub(crate) fn shim_resized(&mut self, resize: u64, pty: Option<TerminalSize>) {
        let Some((waiter, ResizeReply { task })) = self.take_reply(ReplyId(resize)) else { return };
        let Some(size) = pty else { return self.fail(&waiter.caller, no_terminal(&task)) };
        self.store_terminal_size(&task, size);
        self.reply(&waiter.caller, &TaskResizeResult { id: task, rows: size.rows, cols: size.cols });
    }

    /// An adopted shim has reported the size of its terminal, which may have changed while no
    /// daemon ran.
    pub(crate) fn terminal_adopted(&mut self, shim: ShimId, pty: Option<TerminalSize>) {
        let task = self.shims.task_of(shim).map(str::to_owned);
        if let (Some(task), Some(size)) = (task, pty) {
            self.store_terminal_size(&task, size);
        }
    }

    /// Stores the size of a terminal, for lists and for the next daemon.
    fn store_terminal_size(&mut self, id: &str, size: TerminalSize) {
        if self.tasks.get(id).is_some_and(|task| task.stored.doc.spec.pty() != Some(size)) {
            self.tasks.update(id, |task| {
                if let Some(shell) = task.stored.doc.spec.shell_mut() {
                    shell.pty = Some(size);
                }
            });
            self.tasks.mark_changed(id);
        }
    }
}
