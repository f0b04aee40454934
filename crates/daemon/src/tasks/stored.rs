//! A task as it is stored in the journal: one row with a JSON document, read by this daemon, by later ones, and by people.

use belay_journal::TaskRow;
use belay_model::State;
use belay_protocol::daemon::ClientInfo;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::life::ExitStatus;
use belay_protocol::shim::{Clocks, EndRecord, LifeEvent, ProcessId};
use belay_protocol::task::{
    AttemptInfo, Budgets, DetachedBy, OnDisconnect, StallInfo, StallParams, StallSetting, TaskSpecInfo,
    TaskStatus,
};
use belay_protocol::{Bytes, Labels, Timestamp};
use belay_record::convert::Wire as _;
use serde::{Deserialize, Serialize};

use crate::owners::{HookPart, SeatDoc};
use crate::requests::shown;
use crate::runtime::tags_column;

/// Everything that is known of a task and may be stored. The environment is not part of it, and never will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskDoc {
    /// The command as a person would type it.
    pub command: String,
    /// What is particular to tasks of its kind.
    pub spec: TaskSpecInfo,
    pub cwd: Bytes,
    /// It was started in the background.
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
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The actor that started it; empty for a task that was imported from its shim.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started_by: String,
    /// The program that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientInfo>,
    /// It outlives its session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<SeatDoc>,
    #[serde(default, skip_serializing_if = "Budgets::is_empty")]
    pub budgets: Budgets,
    /// How much ended tasks below it have written, if a budget counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_below: Option<u64>,
    /// The command to run when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// It is the run of a hook, or was started by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookPart>,
    /// Of the parameters, for the idempotency token: a keyed hash, so that nothing can be guessed from it.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// Of the scoped token in the task's environment.
    pub proof: String,
    /// The boot during which it was started: a pid means nothing after the next one.
    pub boot: String,
    #[serde(default)]
    pub shim: Option<ShimRecord>,
    /// When the shim started its command; for a retried task, the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<i64>,
    #[serde(default)]
    pub leader: Option<ProcessId>,
    #[serde(default)]
    pub leader_exit: Option<ExitStatus>,
    /// For a task that is retried when it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptInfo>,
    /// How it is checked for progress since a client changed that; `clocks` has what it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_set: Option<StallSetting>,
    /// The evidence of a stall, as long as it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<Box<StallInfo>>,
    /// The number of the last life event that is in the journal.
    pub seen: u64,
    /// The number of the last journal event about it.
    #[serde(default)]
    pub last_event: u64,
    pub status: TaskStatus,
    #[serde(default)]
    pub end: Option<EndRecord>,
}

impl TaskDoc {
    /// The count of attempts before the first one.
    pub(crate) fn no_attempt_yet(clocks: &Clocks) -> Option<AttemptInfo> {
        let of = clocks.retries + 1;
        (clocks.retries > 0).then_some(AttemptInfo { number: 0, of, last: None })
    }

    /// How it is checked for progress now.
    pub(crate) fn stall(&self) -> Option<StallParams> {
        self.stall_set.map_or(self.clocks.stall, StallSetting::params)
    }

    /// Applies one life event; `state` is the state after it.
    pub(crate) fn apply(&mut self, event: &LifeEvent, state: &State, at: Timestamp) {
        // A stalled task that is being stopped makes no progress either: it does not make its sessions busy.
        if !state.is_stalled() && !matches!(state, State::Stopping(_)) {
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
            LifeEvent::StallSet { stall } => self.stall_set = Some((*stall).into()),
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

/// The shim that holds a task: what it takes to find it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimRecord {
    pub name: String,
    pub process: ProcessId,
    #[serde(default)]
    pub cgroup: Option<Bytes>,
}

/// A task's row with its document parsed.
#[derive(Clone, Debug)]
pub(crate) struct StoredTask {
    pub(crate) id: String,
    pub(crate) number: u64,
    pub(crate) token: Option<String>,
    pub(crate) session: String,
    pub(crate) parent: Option<String>,
    pub(crate) name: Option<String>,
    /// When it was recorded.
    pub(crate) created_ms: i64,
    pub(crate) doc: TaskDoc,
}

impl StoredTask {
    pub(crate) fn from_row(row: TaskRow) -> Result<Self, serde_json::Error> {
        let TaskRow { id, number, token, session, parent, name, started_ms: created_ms, body, .. } = row;
        let doc = serde_json::from_str(&body)?;
        Ok(Self { id, number, token, session, parent, name, created_ms, doc })
    }

    /// The same, with an error that can be sent to a client.
    pub(crate) fn read(row: TaskRow) -> Result<Self, RpcError> {
        let id = row.id.clone();
        Self::from_row(row).map_err(|error| {
            RpcError::new(ErrorKind::Internal, format!("the record of task {id} cannot be read: {error}"))
        })
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
            output_bytes: self.kept_bytes(),
            tags: self.tags(),
            body: serde_json::to_string(&self.doc)?,
        })
    }

    /// When its command was started. Rows without that were written by a daemon that knew only when they were made.
    pub(crate) fn started_ms(&self) -> Option<i64> {
        self.doc.started_ms.or_else(|| self.doc.leader.map(|_| self.created_ms))
    }

    /// How much disk space its output takes up, once it has ended.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.doc.end.as_ref().map_or(0, |end| {
            let gaps: u64 = end.output.gaps.iter().map(|gap| gap[1] - gap[0]).sum();
            end.output.bytes.saturating_sub(gaps)
        })
    }

    /// What it and its events are found by in the journal.
    pub(crate) fn tags(&self) -> String {
        tags_column(&self.doc.lineage, &self.doc.labels)
    }

    /// Everything it belongs to: the tasks and sessions above it, and its session.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &str> {
        let own =
            Some(self.session.as_str()).filter(|own| !self.doc.lineage.iter().any(|above| above == own));
        self.doc.lineage.iter().map(String::as_str).chain(own)
    }

    /// Whether it is stopped when its session ends. Runs of hooks are not: what is to be run is run.
    pub(crate) const fn ends_with_session(&self) -> bool {
        !self.doc.keep && self.doc.hook.is_none()
    }

    /// About how much memory it takes up.
    pub(crate) fn stored_bytes(&self) -> usize {
        let labels: usize = self.doc.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        let argv: usize = self.doc.spec.argv().iter().map(|word| word.0.len()).sum();
        self.doc.command.len() + argv + self.doc.cwd.0.len() + labels
    }
}

/// A task that a call names.
#[derive(Clone, Debug)]
pub(crate) enum TaskRef {
    Live(String),
    Ended(Box<StoredTask>),
}

impl TaskRef {
    pub(crate) fn ended(stored: StoredTask) -> Self {
        Self::Ended(Box::new(stored))
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Live(id) => id,
            Self::Ended(stored) => &stored.id,
        }
    }

    /// How many bytes an ended task has written. None: it has not ended.
    pub(crate) fn ended_bytes(&self) -> Option<u64> {
        match self {
            Self::Live(_) => None,
            Self::Ended(stored) => stored.doc.end.as_ref().map(|end| end.output.bytes),
        }
    }
}

pub(crate) fn not_found(text: &str) -> RpcError {
    let message = match shown(text) {
        empty if empty.is_empty() => "an empty id names no task".to_owned(),
        shown => format!("there is no task {shown}"),
    };
    RpcError::new(ErrorKind::NotFound, message)
        .field("id")
        .hint("belay ps -a lists them; ended ones are removed by the rules of retention")
}

pub(crate) fn journal_error(error: &belay_journal::Error) -> RpcError {
    let kind = match error {
        belay_journal::Error::Full { .. } | belay_journal::Error::Backlog { .. } => ErrorKind::DiskFull,
        _ => ErrorKind::Internal,
    };
    let hint = match kind {
        ErrorKind::DiskFull => "free some disk space, or run belay gc",
        _ => "belay doctor says more",
    };
    RpcError::new(kind, format!("the journal failed: {error}")).hint(hint)
}
