//! What every subsystem may use: the time, the host, the settings, the journal, effects and timers. It owns no state of any
//! subsystem.

use std::collections::VecDeque;

use belay_protocol::Timestamp;
use belay_protocol::daemon::DaemonNotice;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::shim::ToShim;

use crate::config::{Config, bounds};
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::input::{Moment, ShimId};
use crate::runtime::{Effects, JournalWriter, Phase, Timer, TimerKey, Timers};

pub(crate) struct Context<H> {
    pub(crate) now: Moment,
    pub(crate) started: Moment,
    pub(crate) phase: Phase,
    pub(crate) host: H,
    pub(crate) config: Config,
    /// Identifies the current boot: a pid means nothing after the next one.
    pub(crate) boot: String,
    /// For keyed hashes; made once per journal.
    pub(crate) key: [u8; 32],
    pub(crate) journal: JournalWriter,
    pub(crate) effects: Effects,
    timers: Timers,
    notices: VecDeque<DaemonNotice>,
    last_number: u64,
}

impl<H: Host> Context<H> {
    pub(crate) fn new(host: H, config: Config, journal: JournalWriter, key: [u8; 32], now: Moment) -> Self {
        let boot = host.boot();
        Self {
            now,
            started: now,
            phase: Phase::Adopting,
            host,
            config,
            boot,
            key,
            journal,
            effects: Effects::default(),
            timers: Timers::default(),
            notices: VecDeque::new(),
            last_number: 0,
        }
    }

    // --- timers ---

    pub(crate) fn schedule(&mut self, in_ms: u64, timer: Timer) -> TimerKey {
        self.timers.schedule(self.now.mono_ms.saturating_add(in_ms), timer)
    }

    pub(crate) fn cancel(&mut self, key: Option<TimerKey>) {
        if let Some(key) = key {
            self.timers.cancel(key);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.timers.next_deadline()
    }

    pub(crate) fn take_due_timer(&mut self) -> Option<Timer> {
        self.timers.take_due(self.now.mono_ms)
    }

    // --- effects ---

    /// Sends a message to a shim, behind messages to it that wait for a commit.
    pub(crate) fn tell_shim(&mut self, shim: ShimId, message: ToShim) {
        self.effects.push(self.effects.stage_of_message_to(shim), Effect::ToShim { shim, message });
    }

    pub(crate) fn crash_point(&self, point: CrashPoint) {
        self.host.crash_point(point);
    }

    // --- the journal ---

    /// Records an event and returns its number. `lineage`: the ids of everything above its subject, outermost first.
    pub(crate) fn record(&mut self, event: Event, tags: String) -> u64 {
        self.journal.record(self.now, &event, tags)
    }

    // --- numbers ---

    /// A number that was not given before, for the ids of this daemon's life.
    pub(crate) const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn random<const N: usize>(&mut self) -> Result<[u8; N], RpcError> {
        let mut bytes = [0; N];
        let made = self.host.random(&mut bytes);
        made.map_err(|error| RpcError::new(ErrorKind::Internal, format!("no random numbers: {error}")))?;
        Ok(bytes)
    }

    // --- notices ---

    /// Tells people something once, in `belay status`, `belay doctor` and the daemon's log.
    pub(crate) fn notice(&mut self, message: String, hint: &str) {
        if self.notices.back().is_some_and(|last| last.message == message) {
            return;
        }
        let hint_shown = Some(hint).filter(|hint| !hint.is_empty());
        tracing::warn!(hint = hint_shown, "{message}");
        if self.notices.len() == bounds::NOTICES {
            self.notices.pop_front();
        }
        let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
        self.notices.push_back(DaemonNotice { at: Timestamp(self.now.wall_ms), message, hint });
    }

    pub(crate) fn notices(&self) -> impl Iterator<Item = &DaemonNotice> {
        self.notices.iter()
    }
}
