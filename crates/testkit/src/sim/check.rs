//! Watches the journal while the daemon writes it, through a connection of its own: it sees what is durable and nothing
//! else. Every rule about the record is checked here, after every step.

use std::collections::BTreeMap;

use belay_daemon::config::bounds;
use belay_daemon::input::Input;
use belay_journal::{Batch, EventRow, Observer as JournalObserver, TaskRow};
use belay_protocol::event::{Event, EventKind};
use belay_protocol::life::{StartStage, TaskEnd};
use belay_protocol::shim::EndRecord;
use belay_protocol::task::{Outcome, OutcomeKind, TaskStatus};
use belay_record::convert::outcome_from_record;
use serde_json::Value;

use super::truth::Truth;
use super::{Checked, Sim};

#[derive(Debug)]
pub(crate) struct Observer {
    journal: JournalObserver,
    seen: u64,
    /// The task that has each token.
    pub(crate) tokens: BTreeMap<String, String>,
    /// How each ended task looks to clients.
    pub(crate) outcomes: BTreeMap<String, Outcome>,
}

impl Observer {
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }
}

const PAGE: usize = 1_000;

/// What an idle daemon and its idle shims take to leave.
const MOST_LAST_TURNS: u64 = 1_000;

impl Sim {
    pub(crate) fn open_observer(&mut self) -> Checked {
        if self.observer.is_none() {
            let journal = JournalObserver::open(self.dir.path()).map_err(|error| error.to_string())?;
            self.observer =
                Some(Observer { journal, seen: 0, tokens: BTreeMap::new(), outcomes: BTreeMap::new() });
        }
        Ok(())
    }

    /// Reads what has become durable since the last look.
    pub(crate) fn observe(&mut self) -> Checked {
        loop {
            let Some(observer) = &self.observer else { return Ok(()) };
            let seen = observer.seen;
            let events = observer.journal.events(seen, PAGE).map_err(|error| error.to_string())?;
            if events.is_empty() {
                return Ok(());
            }
            for row in events {
                self.check_event(&row).map_err(|fault| format!("event {}: {fault}", row.seq))?;
            }
        }
    }

    /// The batches that may not be in the database yet.
    fn unflushed(&self) -> Result<Vec<Batch>, String> {
        belay_journal::unflushed(self.dir.path()).map_err(|error| error.to_string())
    }

    fn check_event(&mut self, row: &EventRow) -> Checked {
        let Some(observer) = &mut self.observer else { return Ok(()) };
        if row.seq != observer.seen + 1 {
            return Err(format!("it follows {}", observer.seen));
        }
        observer.seen = row.seq;
        let event: Event = serde_json::from_str(&row.body).map_err(|error| error.to_string())?;
        let kind = event.kind();
        let columns = (EventKind::from_name(&row.kind), row.task.as_deref(), row.session.as_deref());
        if columns != (Some(kind), event.task(), event.session()) {
            return Err(format!("its columns are {columns:?}, its body is {event:?}"));
        }
        let Some(id) = event.task() else { return Ok(()) };
        if kind == EventKind::TaskCreated {
            return self.check_created(id);
        }
        let Some(truth) = self.tasks.get_mut(id) else { return Err(format!("{id} was never created")) };
        let record = &mut truth.record;
        if record.removed || (record.end.is_some() && kind != EventKind::TaskRemoved) {
            return Err(format!("{} of {id} after its end", kind.name()));
        }
        match &event {
            Event::TaskStarted { .. } => record.started += 1,
            Event::TaskLeaderExited { .. } => record.leader_exited += 1,
            Event::TaskAttemptEnded { .. } => {
                record.attempts_ended += 1;
                record.stalled = false;
            }
            // In turns, and never without the other.
            Event::TaskStalled { .. } | Event::TaskRecovered { .. } => {
                let stalls = kind == EventKind::TaskStalled;
                if truth.clocks.stall.is_none() || std::mem::replace(&mut record.stalled, stalls) == stalls {
                    return Err(format!("{} of {id}, which it was already", kind.name()));
                }
            }
            Event::TaskDetached { .. } => record.detached += 1,
            Event::TaskEnded { status, outcome, .. } => {
                return self.check_ended(id, *status, outcome.as_ref());
            }
            Event::TaskRemoved { .. } if record.end.is_none() => {
                return Err(format!("{id} was removed alive"));
            }
            Event::TaskRemoved { .. } => {
                record.removed = true;
                observer.tokens.retain(|_, owner| owner != id);
            }
            Event::TaskStopping { .. } | Event::TaskAdopted { .. } => {}
            other => return Err(format!("nothing in this simulation leads to {other:?}")),
        }
        let counts = [record.started, record.leader_exited, record.attempts_ended];
        if counts.iter().any(|count| *count > truth.attempts) || record.detached > 1 {
            return Err(format!("{} of {id} once too often", kind.name()));
        }
        Ok(())
    }

    fn check_created(&mut self, id: &str) -> Checked {
        if self.tasks.contains_key(id) {
            return Err(format!("{id} was created twice"));
        }
        let row = self.row(id)?.ok_or_else(|| format!("{id} has an event and no row"))?;
        let Some(observer) = &mut self.observer else { return Ok(()) };
        if let Some(token) = &row.token
            && let Some(other) = observer.tokens.insert(token.clone(), id.to_owned())
        {
            return Err(format!("token {token} has given {other} and {id}"));
        }
        let mut truth = Truth::default();
        let body: Value = serde_json::from_str(&row.body).map_err(|error| error.to_string())?;
        truth.record.hook_of = body["hook"]["run"].as_str().map(str::to_owned);
        truth.record.has_hook = body["notify"].is_string();
        truth.record.ends_with_caller = body["on_disconnect"] == "stop";
        truth.record.token = row.token;
        self.tasks.insert(id.to_owned(), truth);
        Ok(())
    }

    fn row(&self, id: &str) -> Result<Option<TaskRow>, String> {
        let Some(observer) = &self.observer else { return Ok(None) };
        observer.journal.task(id).map_err(|error| error.to_string())
    }

    /// The one place where an end is held against the truth, at the moment at which it becomes durable.
    fn check_ended(&mut self, id: &str, status: TaskStatus, told: Option<&Outcome>) -> Checked {
        let row = self.row(id)?.ok_or_else(|| format!("{id} ended and has no row"))?;
        let body: Value = serde_json::from_str(&row.body).map_err(|error| error.to_string())?;
        let record: EndRecord = serde_json::from_value(body["end"].clone())
            .map_err(|error| format!("{id} ended and its row has no end: {error}"))?;
        let shim_name = body["shim"]["name"].as_str().unwrap_or_default();
        let shim_killed = self.shims.iter().any(|shim| shim.name == shim_name && shim.was_killed);
        let outcome = outcome_from_record(&record);
        if told != Some(&outcome) || body["status"] != status.name() || row.ended_ms.is_none() {
            return Err(format!("{id} ended as {outcome:?}, the event says {status:?}, {told:?}"));
        }
        self.check_wish(id)?;
        let Some(truth) = self.tasks.get_mut(id) else { return Ok(()) };
        truth.shim_killed = shim_killed;
        truth.stop_asked |= self.down_asked;
        truth.judge(&record.end).map_err(|fault| format!("{id}: {fault}"))?;
        check_times(truth, &record, self.mono_ms).map_err(|fault| format!("{id}: {fault}"))?;
        check_transitions(truth, &record.end).map_err(|fault| format!("{id}: {fault}"))?;
        truth.record.end = Some(record.end);
        if let Some(observer) = &mut self.observer {
            observer.outcomes.insert(id.to_owned(), outcome);
        }
        Ok(())
    }

    /// What is to be run when a task has ended is written with its end, or not at all.
    fn check_wish(&self, id: &str) -> Checked {
        let is_wished = self.tasks.get(id).is_some_and(|truth| truth.record.has_hook);
        let is_end = |row: &TaskRow| row.id == id && row.ended_ms.is_some();
        let batch = self.unflushed()?.into_iter().find(|batch| batch.put.iter().any(is_end));
        match batch {
            Some(batch) if is_wished && batch.docs.iter().all(|doc| doc.key != id) => {
                Err(format!("the end of {id} is durable, and what is to be run then is not"))
            }
            _ => Ok(()),
        }
    }

    /// There is never a process without a record.
    pub(crate) fn check_recorded(&self, id: &str) -> Checked {
        match self.row(id)? {
            None => Err(format!("{id} is spawned and does not stand in the journal")),
            Some(row) if row.ended_ms.is_some() => Err(format!("{id} is spawned after its recorded end")),
            Some(_) => Ok(()),
        }
    }

    /// Every clock of every task is enforced, whether or not a daemon runs.
    pub(crate) fn check_clocks(&self) -> Checked {
        for shim in self.shims.iter().filter(|shim| !shim.is_gone) {
            let running = shim.core.state().is_some_and(|state| !state.is_ended());
            let Some(id) = shim.core.task().filter(|_| running) else { continue };
            let Some(truth) = self.tasks.get(id).filter(|truth| truth.spawned_ms.is_some()) else { continue };
            truth.on_time(self.mono_ms).map_err(|fault| format!("task {id}: {fault}"))?;
        }
        Ok(())
    }

    /// How many tasks have ended in which way.
    pub(crate) fn ends(&self) -> BTreeMap<OutcomeKind, u64> {
        let outcomes = self.observer.iter().flat_map(|observer| observer.outcomes.values());
        outcomes.fold(BTreeMap::new(), |mut ends, outcome| {
            *ends.entry(outcome.kind()).or_default() += 1;
            ends
        })
    }

    /// At the end, when nothing will happen any more.
    pub(crate) fn check_the_end(&mut self) -> Checked {
        self.observe()?;
        let open = self.tasks.iter().find(|(_, truth)| truth.record.end.is_none());
        if let Some((id, truth)) = open {
            return Err(format!("{id} has no end: {truth:?}"));
        }
        let loaded = self.observer.as_ref().and_then(|observer| observer.journal.load().ok());
        if let Some(row) = loaded.iter().flat_map(|loaded| &loaded.live).next() {
            return Err(format!("{} is live in the journal and nobody cares", row.id));
        }
        self.check_clients_at_end()?;
        self.let_daemon_settle()?;
        self.check_hooks_at_end()?;
        self.check_shims_at_end()?;
        self.check_daemon_at_end()
    }

    /// What was to be run when a task had ended was run once, or is still to be run by the next daemon.
    fn check_hooks_at_end(&self) -> Checked {
        let Some(observer) = &self.observer else { return Ok(()) };
        let mut loaded = observer.journal.load().map_err(|error| error.to_string())?;
        let docs = loaded.docs.remove("hook").unwrap_or_default();
        for (id, _) in self.tasks.iter().filter(|(_, truth)| truth.record.has_hook) {
            let runs: Vec<&Truth> =
                self.tasks.values().filter(|truth| truth.record.hook_of.as_ref() == Some(id)).collect();
            let never_began = |truth: &&&Truth| match &truth.record.end {
                Some(TaskEnd::Spawn { error }) => error.stage == StartStage::Holder,
                _ => false,
            };
            let given_up = runs.iter().filter(never_began).count() >= bounds::HOOK_TRIES as usize;
            let done = runs.len() - runs.iter().filter(never_began).count() + usize::from(given_up);
            let spawned = runs.iter().filter(|truth| truth.spawned_ms.is_some()).count();
            if spawned > 1 || done + usize::from(docs.contains_key(id)) != 1 {
                return Err(format!(
                    "the hook of {id} ran {spawned} times, {done} of its runs are done: {runs:?}"
                ));
            }
        }
        Ok(())
    }

    fn check_shims_at_end(&self) -> Checked {
        for (n, shim) in self.shims.iter().enumerate().filter(|(_, shim)| !shim.is_gone) {
            let survivors = |id: &str| self.tasks.get(id).is_some_and(|truth| truth.alive().next().is_some());
            if let Some(task) = shim.core.task() {
                return Err(format!("shim {n} still holds {task}"));
            }
            if let Some(task) = shim.holds.as_deref().filter(|task| !survivors(task)) {
                return Err(format!("shim {n} waits for the tree of {task}, which is empty"));
            }
        }
        for (id, truth) in &self.tasks {
            let named = match &truth.record.end {
                Some(TaskEnd::StopFailed { survivors, .. } | TaskEnd::Lost { survivors, .. }) => {
                    survivors.as_slice()
                }
                _ => &[],
            };
            if let Some(process) =
                truth.alive().find(|process| named.iter().all(|one| one.pid != process.pid))
            {
                return Err(format!("process {} of {id} lives and nobody has named it", process.pid));
            }
        }
        Ok(())
    }

    /// Nothing waits for a clock that no longer matters: what is armed is the idle exit, or nothing.
    fn check_daemon_at_end(&mut self) -> Checked {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let armed = daemon.core.next_deadline();
        match (armed, self.plan.idle_exit_ms) {
            (None, None) => Ok(()),
            (Some(at), Some(_)) => self.check_idle_exit(at),
            _ => Err(format!("at {} a timer is armed for {armed:?} and nothing is left to do", self.mono_ms)),
        }
    }

    /// What is noted last comes into the database, and shims hear that they may forget, without anybody asking.
    fn let_daemon_settle(&mut self) -> Checked {
        for _ in 0..MOST_LAST_TURNS {
            let Some(daemon) = self.daemon.as_ref().filter(|daemon| !daemon.core.is_settled()) else {
                return Ok(());
            };
            let at = daemon.core.next_deadline().ok_or("notes are left and no timer is armed")?;
            self.pass_time(at)?;
            self.tell_daemon(Input::Tick)?;
            for _ in 0..MOST_LAST_TURNS {
                if !self.turn()? {
                    break;
                }
            }
        }
        Err("the daemon does not settle".to_owned())
    }

    fn check_idle_exit(&mut self, at_ms: u64) -> Checked {
        self.pass_time(at_ms)?;
        self.tell_daemon(Input::Tick)?;
        for _ in 0..MOST_LAST_TURNS {
            if !self.turn()? {
                break;
            }
        }
        if self.daemon.is_some() {
            return Err(format!("the timer for {at_ms} was not that of the idle exit"));
        }
        let stays = self.shims.iter().position(|shim| !shim.is_gone && !shim.lingers);
        stays.map_or(Ok(()), |shim| Err(format!("shim {shim} stays, without a daemon and without a task")))
    }
}

/// Elapsed time is monotonic, whatever the wall clock does.
fn check_times(truth: &Truth, record: &EndRecord, now_ms: u64) -> Checked {
    let Some(receipt) = &record.receipt else { return Ok(()) };
    let began_ms = match (truth.spawned_ms, &truth.cause) {
        (Some(_), Some((_, began_ms))) => *began_ms,
        _ => return Ok(()),
    };
    // A stop may have come while the task was being started.
    let most = now_ms.saturating_sub(truth.spawned_ms.unwrap_or(began_ms).min(began_ms));
    if receipt.took_ms > most {
        return Err(format!("its stop took {} ms, but only {most} have passed", receipt.took_ms));
    }
    Ok(())
}

/// No transition is missing from the events of a task whose shim has told its whole life.
fn check_transitions(truth: &Truth, end: &TaskEnd) -> Checked {
    let told = !matches!(end, TaskEnd::Lost { .. } | TaskEnd::Spawn { .. });
    if told && truth.record.started != truth.attempts {
        return Err(format!("it ran {} times and is said to have {}", truth.attempts, truth.record.started));
    }
    if told && truth.leader_exit().is_some() && truth.record.leader_exited != truth.attempts {
        return Err("its leader exited and nobody was told".to_owned());
    }
    let rested = truth.attempts.saturating_sub(u32::from(truth.rests_since_ms.is_none()));
    if told && truth.record.attempts_ended != rested {
        return Err(format!("it rested {rested} times, {} are told", truth.record.attempts_ended));
    }
    Ok(())
}
