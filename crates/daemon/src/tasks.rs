//! The live tasks, their indexes, and everything that happens to one task from its start to its end. Which shim holds a task,
//! who owns it and who waits for it are other subsystems' matters.

mod admission;
mod compose;
mod detach;
mod ended;
mod foreground;
mod get;
mod index;
mod lifecycle;
mod list;
mod live;
mod output;
mod output_memory;
mod output_read;
mod output_subscription;
mod preview_stop;
mod process_view;
mod pulse;
mod remove;
mod resubmit;
mod set_stall;
mod shell_line;
mod signal;
mod stall_exemption;
mod start;
mod stdin;
mod stop;
mod stop_many;
mod stored;
mod subtree_budget;
mod task_events;
mod terminal;
mod unfollow;
mod unsent_output;
mod view;
mod wait;

pub(crate) use admission::Place;
pub(crate) use compose::Starter;
pub(crate) use detach::DetachReply;
pub(crate) use ended::TaskEnded;
pub(crate) use get::InspectReply;
pub(crate) use index::Tally;
pub(crate) use output::SearchReply;
pub(crate) use output_memory::output_info;
pub use output_read::{OutputPage, OutputRead};
pub(crate) use set_stall::SetStallReply;
pub(crate) use shell_line::{ParseReply, path_of};
pub(crate) use signal::SignalReply;
pub(crate) use start::StartReply;
pub(crate) use stdin::{WritableWait, WriteReply};
pub(crate) use stop::{StopReply, check_reason};
pub(crate) use stop_many::{AfterStops, StopManyReply};
pub(crate) use stored::{ShimRecord, StoredTask, TaskDoc, TaskRef, journal_error, not_found};
pub(crate) use terminal::{ResizeReply, check_size};
pub(crate) use unfollow::no_such_follow;
pub(crate) use view::{ended_info, typed};
pub(crate) use wait::WaitReply;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use belay_model::{Policy, State, StopOrder, step};
use belay_protocol::shim::Start;
use belay_protocol::task::TaskStatus;
use belay_record::MemoryLog;
use belay_record::convert::stall_from_wire;

use crate::input::{ClientId, Moment, ShimId};
use crate::runtime::{Index, Table, TimerKey};
use index::Contribution;
use live::LiveTasks;
use output_memory::KeptMemory;
use output_subscription::Follow;
use unsent_output::UnsentOutput;

/// Every task that has not ended, and the indexes that answer questions about them.
#[derive(Debug)]
pub(crate) struct Tasks {
    live: LiveTasks,
    by_name: Index<String, String>,
    by_caller: Index<ClientId, String>,
    /// The live tasks below each task or session, and in each session.
    members: Index<String, String>,
    /// The live tasks that each task has started.
    children: Index<String, String>,
    tallies: HashMap<String, Tally>,
    with_budget: BTreeSet<String>,
    /// Every recorded idempotency token, also of ended tasks, and the task that has it.
    tokens: HashMap<String, String>,
    token_of: HashMap<String, String>,
    /// The tasks that ended last, so that a caller that asks once more need not wait for the journal.
    recent: VecDeque<StoredTask>,
    /// Tasks that have to be recorded again with the next commit.
    changed: BTreeSet<String>,
    /// Sessions that were drained or became busy since the last commit.
    levels_changed: BTreeSet<String>,
    /// Tasks that moved on in the current step without ending in it.
    progressed: Vec<String>,
    /// Tasks that were detached in the current step.
    detached: Vec<String>,
    /// Tasks that wait for an idle shim, in order.
    awaiting_shim: VecDeque<String>,
    /// Tasks that are being stopped with everything below them: nothing new starts there.
    closing: BTreeMap<String, usize>,
    kept_memory: KeptMemory,
    unsent_output: UnsentOutput,
    follows: Table<u64, Follow>,
    /// Subscriptions that are being read for, or wait for their turn.
    active_follows: BTreeSet<u64>,
    budget_timer: Option<TimerKey>,
    budget_sample_running: bool,
}

/// A task that has not ended. It is `queued` as long as it waits for a seat in its lane, for an idle shim, or to be resubmitted
/// after a crash.
#[derive(Debug)]
pub(crate) struct Task {
    stored: StoredTask,
    state: State,
    policy: Policy,
    shim: Option<ShimId>,
    /// Until it is handed to a shim. It holds the environment, so it lives in memory only.
    start: Option<Box<Start>>,
    /// The number of the last life event that `state` reflects.
    applied: u64,
    stop: Option<StopRequest>,
    /// A daemon died before any shim had its start: until when that may be resubmitted.
    awaiting_resubmit: Option<TimerKey>,
    /// The connection whose caller waits for it in the foreground.
    caller: Option<ClientId>,
    /// Until when a caller may come back to it.
    caller_deadline: Option<TimerKey>,
    /// Its output, while that is in the memory of its shim.
    memory: Option<Arc<MemoryLog>>,
    /// Its shim has not reported any output on disk.
    no_disk_output: bool,
    follows: Vec<u64>,
    /// How many waits need a report of every new output.
    output_waits: usize,
    counted: Option<Contribution>,
}

/// The hardest stop that was asked for, and when the first one was.
#[derive(Clone, Debug)]
pub(crate) struct StopRequest {
    pub(crate) order: StopOrder,
    pub(crate) first_asked: Moment,
}

impl Task {
    /// A task of which no life event is known yet.
    pub(crate) const fn new(stored: StoredTask, state: State, policy: Policy) -> Self {
        Self {
            stored,
            state,
            policy,
            shim: None,
            start: None,
            applied: 0,
            stop: None,
            awaiting_resubmit: None,
            caller: None,
            caller_deadline: None,
            memory: None,
            no_disk_output: false,
            follows: Vec::new(),
            output_waits: 0,
            counted: None,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.stored.id
    }

    pub(crate) fn session(&self) -> &str {
        &self.stored.session
    }

    pub(crate) const fn stored(&self) -> &StoredTask {
        &self.stored
    }

    pub(crate) const fn shim(&self) -> Option<ShimId> {
        self.shim
    }

    pub(crate) const fn status(&self) -> TaskStatus {
        self.stored.doc.status
    }

    /// A stop was asked for.
    pub(crate) const fn is_being_stopped(&self) -> bool {
        self.stop.is_some()
    }

    pub(crate) const fn is_queued(&self) -> bool {
        matches!(self.state, State::Queued { .. })
    }

    /// The shim is going to report its life from the first event on.
    fn reset(&mut self, queued: bool) {
        self.applied = 0;
        // A later change of it is part of the life.
        self.policy.stall = self.stored.doc.clocks.stall.map(stall_from_wire);
        self.state = State::new(self.stored.doc.detached);
        if !queued {
            self.state = step(&self.policy, self.state.clone(), belay_model::Event::Admitted).state;
        }
    }
}
