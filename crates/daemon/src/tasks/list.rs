//! `task/list`: one page of the tasks that a caller may see, newest first. Live tasks come from memory, ended ones from the
//! journal's reader; processes and output sums that are not known here come from a sample.

use std::cmp::Reverse;

use belay_journal::{Query, RowPredicate, Rows, TaskFilter, TaskPage, TaskRow};
use belay_protocol::error::RpcError;
use belay_protocol::labels::{check_labels, has_labels};
use belay_protocol::task::{TaskInfo, TaskListParams, TaskStatus};
use belay_protocol::{Labels, Timestamp};
use serde::{Serialize, Serializer};

use super::{StoredTask, Task, ended_info};
use crate::config::bounds;
use crate::effect::SampleItem;
use crate::host::Host;
use crate::requests::check::{at_most, check_text};
use crate::requests::{Answer, Caller, Scope, internal};
use crate::runtime::{Core, label_tag};

/// How many ended tasks one page of a filtered list looks at: the next page goes on behind them.
const EXAMINED: usize = 10_000;

/// What a list asks for, checked.
#[derive(Clone, Debug)]
struct Wanted {
    scope: Scope,
    status: Vec<TaskStatus>,
    session: Option<String>,
    lane: Option<String>,
    name: Option<String>,
    /// In lower case.
    text: Option<String>,
    actor: Option<String>,
    labels: Labels,
    ended_before: Option<Timestamp>,
    before: Option<u64>,
    limit: usize,
}

impl Wanted {
    fn includes(&self, stored: &StoredTask) -> bool {
        self.before.is_none_or(|before| stored.number < before)
            && self.scope.covers_task(stored)
            && self.name.as_ref().is_none_or(|name| stored.name.as_ref() == Some(name))
            && has_labels(&self.labels, &stored.doc.labels)
            && self
                .ended_before
                .is_none_or(|before| stored.doc.end.as_ref().is_some_and(|end| end.ended_at_ms < before.0))
            && self.matches_document(stored)
    }

    /// The part of the filter that only the document of a task can answer.
    fn matches_document(&self, stored: &StoredTask) -> bool {
        let doc = &stored.doc;
        let seat = doc.lane.as_ref().map(|seat| seat.name.as_str());
        (self.status.is_empty() || self.status.contains(&doc.status))
            && self.session.as_ref().is_none_or(|session| stored.owners().any(|owner| owner == session))
            && self.lane.as_deref().is_none_or(|lane| seat == Some(lane))
            && self.text.as_deref().is_none_or(|text| contains_text(stored, text))
            && self.actor.as_deref().is_none_or(|actor| doc.started_by.contains(actor))
    }

    fn needs_document(&self) -> bool {
        !self.status.is_empty()
            || self.session.is_some()
            || self.lane.is_some()
            || self.text.is_some()
            || self.actor.is_some()
    }

    /// The same for ended tasks in the journal. What its columns cannot answer is asked of each row, on the reader's thread.
    fn of_journal(&self) -> TaskFilter {
        let wanted = self.clone();
        let matches = move |row: &TaskRow| {
            StoredTask::from_row(row.clone()).is_ok_and(|stored| wanted.matches_document(&stored))
        };
        TaskFilter {
            ended: Some(true),
            ended_before_ms: self.ended_before.map(|before| before.0),
            before: self.before,
            limit: self.limit,
            session: None,
            parent: None,
            name: self.name.clone(),
            scope: self.scope.id().map(str::to_owned),
            tags: self.labels.iter().map(|(key, value)| label_tag(key, value)).collect(),
            predicate: self.needs_document().then(|| RowPredicate::new(matches)),
            max_examined: self.needs_document().then_some(EXAMINED),
        }
    }
}

fn contains_text(stored: &StoredTask, lower: &str) -> bool {
    let contains = |text: &str| text.to_lowercase().contains(lower);
    contains(&stored.doc.command) || stored.name.as_deref().is_some_and(contains) || stored.id.contains(lower)
}

/// A task of a list, before it is described.
enum Listed<'a> {
    Live(&'a Task),
    Ended(Box<StoredTask>),
}

impl Listed<'_> {
    const fn stored(&self) -> &StoredTask {
        match self {
            Self::Live(task) => &task.stored,
            Self::Ended(stored) => stored,
        }
    }

    const fn number(&self) -> u64 {
        self.stored().number
    }
}

/// One page. It is sent as `belay_protocol::task::TaskListResult`.
struct Page<'a> {
    listed: Vec<Listed<'a>>,
    as_of: u64,
    next_cursor: Option<String>,
}

/// Describes one task at a time while it is serialised: a thousand descriptions at once are a megabyte.
struct Described<'a, H: Host> {
    core: &'a Core<H>,
    listed: &'a [Listed<'a>],
}

impl<H: Host> Serialize for Described<'_, H> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.listed.iter().map(|listed| self.core.describe(listed)))
    }
}

#[derive(Serialize)]
struct Sent<T> {
    tasks: T,
    as_of: u64,
    next_cursor: Option<String>,
}

impl<H: Host> Core<H> {
    pub(crate) fn task_list(&mut self, caller: &Caller, params: TaskListParams) -> Result<Answer, RpcError> {
        let with_ended = params.all
            || params.ended_before.is_some()
            || params.status.iter().any(|status| status.is_ended());
        let wanted = self.check_list(caller, params)?;
        if !with_ended {
            return Ok(self.answer_list(caller, &wanted, Vec::new(), None));
        }
        let filter = wanted.of_journal();
        self.await_worker(caller, |core, finish| {
            core.read_journal(Query::List(filter), move |core, rows| {
                let make =
                    move |core: &mut Self, caller: &Caller| core.list_with_ended(caller, &wanted, rows);
                finish(core, Box::new(make));
            });
        });
        Ok(Answer::Later)
    }

    fn check_list(&self, caller: &Caller, params: TaskListParams) -> Result<Wanted, RpcError> {
        let scope = self.scope(caller);
        check_labels("labels", &params.labels)?;
        check_text("text", params.text.as_deref(), bounds::REASON_BYTES)?;
        Ok(Wanted {
            limit: at_most("limit", params.limit, bounds::LIST_ITEMS)?,
            before: params.cursor.as_deref().map(read_cursor).transpose()?,
            session: params.session.as_ref().map(|text| self.find_session(&scope, text)).transpose()?,
            scope,
            status: params.status,
            lane: params.lane,
            name: params.name,
            text: params.text.map(|text| text.to_lowercase()),
            actor: params.actor,
            labels: params.labels,
            ended_before: params.ended_before,
        })
    }

    fn list_with_ended(
        &mut self,
        caller: &Caller,
        wanted: &Wanted,
        rows: Result<Rows, RpcError>,
    ) -> Result<Answer, RpcError> {
        // The journal may have more than was read of it: what is older than that belongs to a later page.
        let Rows::List(TaskPage { tasks, floor }) = rows? else { return Err(internal()) };
        let unwritten = self.ctx.journal.unwritten_ends().cloned();
        let kept = tasks.into_iter().filter(|row| !self.ctx.journal.is_being_removed(&row.id));
        let ended = kept.chain(unwritten).filter_map(|row| StoredTask::from_row(row).ok());
        let ended = ended.filter(|stored| wanted.includes(stored) && !self.tasks.contains(&stored.id));
        let ended: Vec<StoredTask> = ended.collect();
        Ok(self.answer_list(caller, wanted, ended, floor))
    }

    fn answer_list(
        &mut self,
        caller: &Caller,
        wanted: &Wanted,
        ended: Vec<StoredTask>,
        floor: Option<u64>,
    ) -> Answer {
        // What was recorded before this call is contained in the list.
        self.commit_or_retry();
        let page = self.page(wanted, ended, floor);
        let samples = self.samples_for(&page);
        if samples.is_empty() {
            let described = Described { core: self, listed: &page.listed };
            let Page { as_of, next_cursor, .. } = &page;
            return caller.answer(&Sent {
                tasks: described,
                as_of: *as_of,
                next_cursor: next_cursor.clone(),
            });
        }
        let tasks: Vec<TaskInfo> = page.listed.iter().map(|listed| self.describe(listed)).collect();
        let sent = Sent { tasks, as_of: page.as_of, next_cursor: page.next_cursor };
        self.await_worker(caller, |core, finish| {
            core.sample(samples, move |core, mut sample| {
                let mut sent = sent;
                for info in &mut sent.tasks {
                    if let Some(processes) = sample.processes.remove(&info.id) {
                        info.processes = Some(processes);
                    }
                    if let Some(output) = sample.output.remove(&info.id) {
                        info.output = output;
                    }
                }
                finish(core, Box::new(move |_, caller| Ok(caller.answer(&sent))));
            });
        });
        Answer::Later
    }

    fn page(&self, wanted: &Wanted, ended: Vec<StoredTask>, floor: Option<u64>) -> Page<'_> {
        let live = self.tasks.newest_first(wanted.before);
        let live = live.take_while(|task| floor.is_none_or(|floor| task.stored.number >= floor));
        let live = live.filter(|task| wanted.includes(&task.stored));
        let mut listed: Vec<Listed<'_>> = live.take(wanted.limit + 1).map(Listed::Live).collect();
        let ended = ended.into_iter().filter(|stored| floor.is_none_or(|floor| stored.number >= floor));
        listed.extend(ended.map(|stored| Listed::Ended(Box::new(stored))));
        listed.sort_unstable_by_key(|task| Reverse(task.number()));
        let fit = fitting(&listed).min(wanted.limit);
        let cut = listed.get(fit).and_then(|_| listed.get(fit - 1)).map(Listed::number);
        listed.truncate(fit);
        let next_cursor = cut.or(floor).map(|number| number.to_string());
        Page { listed, as_of: self.ctx.journal.last_event(), next_cursor }
    }

    /// What has to be sampled for a page: processes that outlived their leader, and logs on disk.
    fn samples_for(&self, page: &Page<'_>) -> Vec<SampleItem> {
        let items = page.listed.iter().filter_map(|listed| {
            let Listed::Live(task) = listed else { return None };
            let tree = task.has_left_children().then(|| task.tree()).flatten();
            let log_dir = task.has_log_on_disk().then(|| self.ctx.config.task_dir(task.id()));
            (tree.is_some() || log_dir.is_some()).then(|| SampleItem {
                task: task.id().to_owned(),
                tree,
                log_dir,
            })
        });
        items.collect()
    }

    fn describe(&self, listed: &Listed<'_>) -> TaskInfo {
        match listed {
            Listed::Live(task) => self.info_without_log(task),
            Listed::Ended(stored) => ended_info(stored),
        }
    }
}

/// How many of these fit into one reply, at least one: commands can be long.
fn fitting(listed: &[Listed<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |task: &&Listed<'_>| {
        bytes += task.stored().stored_bytes();
        bytes <= bounds::LIST_BYTES
    };
    listed.iter().take_while(fits).count().max(1)
}

fn read_cursor(text: &str) -> Result<u64, RpcError> {
    text.parse().map_err(|_| RpcError::invalid("cursor", "that is no cursor of an earlier list"))
}
