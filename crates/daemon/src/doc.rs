//! A task as it stands in the journal: one JSON document a row. Read by this daemon, by later ones, and by people.

use belay_journal::TaskRow;
use belay_model::State;
use belay_protocol::life::ExitStatus;
use belay_protocol::shell::LineInfo;
use belay_protocol::shim::{Clocks, EndRecord, LifeEvent, ProcessId};
use belay_protocol::task::{
    AttemptInfo, Budgets, DetachedBy, OnDisconnect, Size, StallInfo, Status, TaskKind,
};
use belay_protocol::{Bytes, Timestamp};
use belay_record::convert::Wire as _;
use serde::{Deserialize, Serialize};

use crate::hooks::HookPart;
use crate::lanes::SeatDoc;

/// Everything that is known of a task and may be stored. The environment is not in here, and never will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskDoc {
    pub kind: TaskKind,
    /// The command as one would type it.
    pub command: String,
    /// What was done with the `&` of a shell line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<LineInfo>,
    pub argv: Vec<Bytes>,
    pub cwd: Bytes,
    /// Nobody waited for it when it was started.
    pub detached: bool,
    /// Who moved it to the background later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached_by: Option<DetachedBy>,
    #[serde(default)]
    pub on_disconnect: OnDisconnect,
    pub clocks: Clocks,
    /// Everything above it, tasks and sessions, from the outermost in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<String>,
    /// It outlives its session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<SeatDoc>,
    #[serde(default, skip_serializing_if = "Budgets::is_empty")]
    pub budgets: Budgets,
    /// What tasks below it have written that have ended, as far as a budget counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_below: Option<u64>,
    /// What is run when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// It is the run of a hook, or was started by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookPart>,
    /// The size that its terminal had last, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Size>,
    /// Of the parameters, for the idempotency token: a keyed hash, so that nothing can be guessed from it.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// Of the scoped token in the task's environment.
    pub proof: String,
    /// The boot during which it was started: a pid means nothing after the next one.
    pub boot: String,
    #[serde(default)]
    pub shim: Option<ShimDoc>,
    /// When its command was started, by the shim's word; the first time, if it is run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<i64>,
    #[serde(default)]
    pub leader: Option<ProcessId>,
    #[serde(default)]
    pub leader_exit: Option<ExitStatus>,
    /// Of one that is run again when it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptInfo>,
    /// What was seen when it was found not to get on, as long as that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<Box<StallInfo>>,
    /// The number of the last life event that is in the journal.
    pub seen: u64,
    pub status: Status,
    #[serde(default)]
    pub end: Option<EndRecord>,
}

impl TaskDoc {
    /// The count of attempts before the first of them.
    pub(crate) fn no_attempt_yet(clocks: &Clocks) -> Option<AttemptInfo> {
        let of = clocks.retries + 1;
        (clocks.retries > 0).then_some(AttemptInfo { number: 0, of, last: None })
    }

    /// What one event of the life has changed in here; `state` is the one after it.
    pub(crate) fn note(&mut self, event: &LifeEvent, state: &State, at: Timestamp) {
        if !state.is_stalled() {
            self.stalled = None;
        }
        match event {
            LifeEvent::Stalled { evidence } if state.is_stalled() => {
                let evidence = (**evidence).clone();
                self.stalled = Some(Box::new(StallInfo { since: at, evidence }));
            }
            LifeEvent::Spawned { process, .. } => {
                self.leader = Some(*process);
                self.started_ms.get_or_insert(at.0);
                self.leader_exit = None;
                if let Some(attempt) = &mut self.attempt {
                    attempt.number = state.attempt();
                }
            }
            LifeEvent::LeaderExited { exit } => self.leader_exit = Some(*exit),
            LifeEvent::TreeEmpty => {
                if let (Some(attempt), State::Resting(resting)) = (&mut self.attempt, state) {
                    attempt.last = Some(resting.last.to_wire());
                }
            }
            LifeEvent::SpawnFailed { .. }
            | LifeEvent::Detach { .. }
            | LifeEvent::Stop { .. }
            | LifeEvent::ClockRanOut { .. }
            | LifeEvent::BudgetRanOut { .. }
            | LifeEvent::Stalled { .. }
            | LifeEvent::Recovered
            | LifeEvent::Signalled { .. }
            | LifeEvent::Survivors { .. }
            | LifeEvent::ShimLost { .. } => {}
        }
    }
}

/// The shim that holds a task, as far as it takes to find it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimDoc {
    pub name: String,
    pub process: ProcessId,
    #[serde(default)]
    pub cgroup: Option<Bytes>,
}

/// A task's row with its document read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub id: String,
    pub number: u64,
    pub token: Option<String>,
    pub session: String,
    pub parent: Option<String>,
    pub name: Option<String>,
    /// When it was recorded.
    pub created_ms: i64,
    pub doc: TaskDoc,
}

impl Entry {
    pub(crate) fn from_row(row: TaskRow) -> Result<Self, serde_json::Error> {
        let TaskRow { id, number, token, session, parent, name, started_ms: created_ms, body, .. } = row;
        let doc = serde_json::from_str(&body)?;
        Ok(Self { id, number, token, session, parent, name, created_ms, doc })
    }

    /// When its command was started. Records that do not say it are of a daemon that knew only when they were made.
    pub(crate) fn started_ms(&self) -> Option<i64> {
        self.doc.started_ms.or_else(|| self.doc.leader.map(|_| self.created_ms))
    }

    pub(crate) fn to_row(&self) -> Result<TaskRow, serde_json::Error> {
        let end = self.doc.end.as_ref();
        Ok(TaskRow {
            id: self.id.clone(),
            number: self.number,
            token: self.token.clone(),
            session: self.session.clone(),
            parent: self.parent.clone(),
            name: self.name.clone(),
            started_ms: self.created_ms,
            ended_ms: end.map(|end| end.ended_at_ms),
            output_bytes: end.map_or(0, kept_bytes),
            body: serde_json::to_string(&self.doc)?,
        })
    }
}

/// What a task's output takes up on disk.
fn kept_bytes(end: &EndRecord) -> u64 {
    let gaps: u64 = end.output.gaps.iter().map(|gap| gap[1] - gap[0]).sum();
    end.output.bytes.saturating_sub(gaps)
}
