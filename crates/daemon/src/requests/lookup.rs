//! Finding the task that a call names: by id, by an unambiguous beginning of it, or by name. Live tasks and the last ended ones
//! are in memory; for all others the journal's reader is asked, and the call goes on when it has answered.

use belay_journal::{Query, Rows, TaskFilter};
use belay_model::TaskId;
use belay_protocol::error::{ErrorKind, RpcError};

use super::access::not_permitted;
use super::{Answer, Caller, Scope};
use crate::config::bounds;
use crate::host::Host;
use crate::runtime::Core;
use crate::tasks::{StoredTask, TaskRef, not_found};

/// So many of the tasks that may be meant are named.
const AMBIGUOUS_IDS: usize = 10;

pub(crate) type Then<H> = Box<dyn FnOnce(&mut Core<H>, Result<TaskRef, RpcError>)>;

impl<H: Host> Core<H> {
    /// Calls the handler with the task that the caller means, now or when the journal has been asked.
    pub(crate) fn with_task(
        &mut self,
        caller: &Caller,
        text: &str,
        handler: impl FnOnce(&mut Self, &Caller, TaskRef) -> Result<Answer, RpcError> + 'static,
    ) -> Result<Answer, RpcError> {
        self.with_task_or_error(caller, text, |core, caller, found| handler(core, caller, found?))
    }

    /// The same for a handler that has its own reply to a task that is not there.
    pub(crate) fn with_task_or_error(
        &mut self,
        caller: &Caller,
        text: &str,
        handler: impl FnOnce(&mut Self, &Caller, Result<TaskRef, RpcError>) -> Result<Answer, RpcError> + 'static,
    ) -> Result<Answer, RpcError> {
        let scope = self.scope(caller);
        match self.find_in_memory(&scope, text) {
            Ok(Some(task)) => handler(self, caller, Ok(task)),
            Err(error) => handler(self, caller, Err(error)),
            Ok(None) => {
                self.await_worker(caller, |core, finish| {
                    let then = move |core: &mut Self, found| {
                        finish(core, Box::new(move |core, caller| handler(core, caller, found)));
                    };
                    core.look_up(scope, text.to_owned(), Box::new(then));
                });
                Ok(Answer::Later)
            }
        }
    }

    /// The task, if it can be found without asking the journal.
    pub(crate) fn find_in_memory(&self, scope: &Scope, text: &str) -> Result<Option<TaskRef>, RpcError> {
        if TaskId::parse(text).is_ok() {
            let Some(task) = self.task_in_memory(text)? else { return Ok(None) };
            return self.visible(scope, task).map(Some);
        }
        if TaskId::is_prefix(text) {
            return Ok(None);
        }
        if text.is_empty() || text.len() > bounds::NAME_BYTES {
            return Err(not_found(text));
        }
        self.find_live_name(scope, text)
    }

    /// A live task, one of the last ended ones, or one whose end could not be written yet.
    pub(crate) fn task_in_memory(&self, id: &str) -> Result<Option<TaskRef>, RpcError> {
        if self.tasks.get(id).is_some() {
            return Ok(Some(TaskRef::Live(id.to_owned())));
        }
        if self.ctx.journal.is_being_removed(id) {
            return Err(not_found(id));
        }
        if let Some(stored) = self.tasks.recent(id) {
            return Ok(Some(TaskRef::Ended(Box::new(stored.clone()))));
        }
        let unwritten = self.ctx.journal.unwritten_end(id).cloned();
        unwritten.map(|row| StoredTask::read(row).map(TaskRef::ended)).transpose()
    }

    fn visible(&self, scope: &Scope, task: TaskRef) -> Result<TaskRef, RpcError> {
        let is_visible = match &task {
            TaskRef::Live(id) => self.tasks.get(id).is_some_and(|task| scope.covers_task(task.stored())),
            TaskRef::Ended(stored) => scope.covers_task(stored),
        };
        if is_visible { Ok(task) } else { Err(not_permitted(task.id())) }
    }

    /// The one live task with this name. None: there is no live one.
    fn find_live_name(&self, scope: &Scope, name: &str) -> Result<Option<TaskRef>, RpcError> {
        let mut live: Vec<String> = self
            .tasks
            .named(name)
            .filter(|task| scope.covers_task(task.stored()))
            .map(|task| task.id().to_owned())
            .collect();
        match live.len() {
            0 => Ok(None),
            1 => Ok(Some(TaskRef::Live(live.remove(0)))),
            many => Err(ambiguous(format!("{many} live tasks have the name {}", shown(name)), live)),
        }
    }

    // --- asking the journal ---

    /// Looks a task up in the journal.
    pub(crate) fn look_up(&mut self, scope: Scope, text: String, then: Then<H>) {
        if TaskId::parse(&text).is_ok() {
            self.look_up_id(scope, text, then);
        } else if TaskId::is_prefix(&text) {
            self.look_up_prefix(scope, text, then);
        } else {
            self.look_up_name(scope, text, then);
        }
    }

    fn look_up_id(&mut self, scope: Scope, id: String, then: Then<H>) {
        self.read_journal(Query::Tasks(vec![id.clone()]), move |core, rows| {
            let found = core.ended_task(&id, rows).and_then(|task| core.visible(&scope, task));
            then(core, found);
        });
    }

    /// The task that was asked for by its id, as it is now.
    fn ended_task(&self, id: &str, rows: Result<Rows, RpcError>) -> Result<TaskRef, RpcError> {
        if let Some(task) = self.task_in_memory(id)? {
            return Ok(task);
        }
        let Rows::Tasks(rows) = rows? else { return Err(not_found(id)) };
        let row = rows.into_iter().next().ok_or_else(|| not_found(id))?;
        StoredTask::read(row).map(TaskRef::ended)
    }

    fn look_up_prefix(&mut self, scope: Scope, text: String, then: Then<H>) {
        let query = Query::Prefix {
            prefix: text.clone(),
            scope: scope.id().map(str::to_owned),
            limit: AMBIGUOUS_IDS + 1,
        };
        self.read_journal(query, move |core, rows| {
            let ids = match rows {
                Ok(Rows::Ids(ids)) => ids,
                Ok(_) => Vec::new(),
                Err(error) => return then(core, Err(error)),
            };
            let ids: Vec<String> =
                ids.into_iter().filter(|id| !core.ctx.journal.is_being_removed(id)).collect();
            match ids.as_slice() {
                // What begins no id may be a name.
                [] => match core.find_live_name(&scope, &text) {
                    Ok(Some(task)) => then(core, Ok(task)),
                    Ok(None) => core.look_up_name(scope, text, then),
                    Err(error) => then(core, Err(error)),
                },
                // The caller left out the rest and means one of several, even if there is only one.
                _ if text.ends_with('-') => {
                    let message = format!("{text} alone is too short for the beginning of an id");
                    then(core, Err(ambiguous(message, ids)));
                }
                [id] => match core.task_in_memory(id) {
                    Ok(Some(task)) => {
                        let found = core.visible(&scope, task);
                        then(core, found);
                    }
                    Ok(None) => core.look_up_id(scope, id.clone(), then),
                    Err(error) => then(core, Err(error)),
                },
                _ => {
                    let message = format!("{} tasks begin with {text}", counted(&ids));
                    then(core, Err(ambiguous(message, ids)));
                }
            }
        });
    }

    /// The ended task with this name that was started last.
    fn look_up_name(&mut self, scope: Scope, name: String, then: Then<H>) {
        let filter = TaskFilter {
            ended: Some(true),
            name: Some(name.clone()),
            scope: scope.id().map(str::to_owned),
            limit: 2,
            ..TaskFilter::default()
        };
        self.read_journal(Query::List(filter), move |core, rows| {
            let rows = match rows {
                Ok(Rows::List(page)) => page.tasks,
                Ok(_) => Vec::new(),
                Err(error) => return then(core, Err(error)),
            };
            let is_meant = |stored: &StoredTask| {
                stored.name.as_deref() == Some(name.as_str())
                    && scope.covers_task(stored)
                    && !core.ctx.journal.is_being_removed(&stored.id)
            };
            let unwritten = core.ctx.journal.unwritten_ends().cloned();
            let found = rows.into_iter().chain(unwritten).filter_map(|row| StoredTask::read(row).ok());
            let found = found.filter(is_meant).max_by_key(|stored| stored.number);
            let found = found.map(TaskRef::ended).ok_or_else(|| not_found(&name));
            then(core, found);
        });
    }
}

/// What was typed, as far as it can be repeated: control characters are shown as escapes.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(40) {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

fn counted(ids: &[String]) -> String {
    if ids.len() > AMBIGUOUS_IDS { format!("more than {AMBIGUOUS_IDS}") } else { ids.len().to_string() }
}

fn ambiguous(message: String, mut ids: Vec<String>) -> RpcError {
    ids.truncate(AMBIGUOUS_IDS);
    RpcError::new(ErrorKind::Ambiguous, message)
        .field("id")
        .hint(format!("one of: {}", ids.join(", ")))
        .ids(ids)
}
