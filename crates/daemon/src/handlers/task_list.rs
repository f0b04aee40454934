//! `task/list`: one page of the tasks that somebody may see, newest first. They are put in order before any of them is put
//! into words, and each goes into the answer as its turn comes: a thousand descriptions at once are a megabyte.

use std::cmp::Reverse;

use belay_protocol::error::RpcError;
use belay_protocol::task::ListParams;
use serde::{Serialize, Serializer};

use super::check::at_most;
use crate::answer::Caller;
use crate::config::bounds;
use crate::core::{Core, Task};
use crate::doc::Entry;
use crate::record::journal_error;
use crate::rights::Scope;
use crate::sessions::is_in;
use crate::world::World;

/// A task of a list, before it is described.
enum Listed<'a> {
    Held(&'a Task),
    Ended(Box<Entry>),
}

impl Listed<'_> {
    const fn entry(&self) -> &Entry {
        match self {
            Self::Held(task) => &task.entry,
            Self::Ended(entry) => entry,
        }
    }

    const fn number(&self) -> u64 {
        self.entry().number
    }
}

/// What is sent: `belay_protocol::task::ListResult`, which is what the other side makes of it.
#[derive(Serialize)]
#[serde(bound = "")]
struct Page<'a, W: World> {
    tasks: Descriptions<'a, W>,
    next_cursor: Option<String>,
}

struct Descriptions<'a, W> {
    core: &'a Core<W>,
    listed: Vec<Listed<'a>>,
}

impl<W: World> Serialize for Descriptions<'_, W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.listed.iter().map(|listed| match listed {
            Listed::Held(task) => self.core.info_of(task, false, None),
            Listed::Ended(entry) => Core::<W>::ended_info(entry),
        }))
    }
}

impl<W: World> Core<W> {
    pub(crate) fn task_list(&mut self, caller: &Caller, params: &ListParams) {
        match self.page(&self.scope(caller), params).map(|page| caller.answer(&page)) {
            Ok(Some(line)) => self.send_lines(caller.client, line),
            Ok(None) => {}
            Err(error) => self.fail(caller, error),
        }
    }

    fn page(&self, scope: &Scope, params: &ListParams) -> Result<Page<'_, W>, RpcError> {
        let limit = at_most("limit", params.limit, bounds::LIST_ITEMS)?;
        let before = params.cursor.as_deref().map(read_cursor).transpose()?;
        let session = params.session.as_ref().map(|text| self.find_session(scope, text)).transpose()?;
        let wanted = |entry: &Entry| {
            before.is_none_or(|before| entry.number < before)
                && session.as_ref().is_none_or(|session| is_in(session, entry))
                && scope.covers_task(entry)
        };
        let held = self.tasks.values().filter(|task| wanted(&task.entry)).map(Listed::Held);
        let mut listed: Vec<Listed<'_>> = held.collect();
        // The journal has more than one page: what is older than what was read of it belongs to a later one.
        let mut floor = None;
        if params.all {
            let filter = belay_journal::TaskFilter {
                ended: Some(true),
                before,
                limit: limit + 1,
                ..Default::default()
            };
            let rows = self.journal.tasks(&filter).map_err(|error| journal_error(&error))?;
            floor = rows.get(limit).map(|row| row.number);
            let kept = rows.into_iter().filter(|row| !self.batch.removed.contains(&row.id));
            // Ends that the disk has no room for yet.
            let waiting = self.batch.put.iter().filter(|row| row.ended_ms.is_some()).cloned();
            let entries = kept.chain(waiting).filter_map(|row| Entry::from_row(row).ok()).filter(wanted);
            listed.extend(entries.map(|entry| Listed::Ended(Box::new(entry))));
        }
        listed.retain(|task| floor.is_none_or(|floor| task.number() > floor));
        listed.sort_unstable_by_key(|task| Reverse(task.number()));
        let fit = fitting(&listed).min(limit);
        let cut = listed.get(fit).and_then(|_| listed.get(fit - 1)).map(Listed::number);
        listed.truncate(fit);
        let next_cursor = cut.or(floor.map(|floor| floor + 1)).map(|number| number.to_string());
        Ok(Page { tasks: Descriptions { core: self, listed }, next_cursor })
    }
}

/// How many of these fit into one answer, one at least: commands can be long.
fn fitting(listed: &[Listed<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |task: &&Listed<'_>| {
        let doc = &task.entry().doc;
        bytes += doc.command.len() + doc.argv.iter().map(|word| word.0.len()).sum::<usize>();
        bytes <= bounds::LIST_BYTES
    };
    listed.iter().take_while(fits).count().max(1)
}

fn read_cursor(text: &str) -> Result<u64, RpcError> {
    text.parse().map_err(|_| RpcError::invalid("cursor", "that is no cursor of an earlier list"))
}
