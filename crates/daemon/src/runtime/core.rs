//! The daemon's core: one input in, a list of effects out. It owns the subsystems, is the only place that coordinates several
//! of them, and does no I/O but the append to the journal's write buffer and the short operations of `Host`.

use std::collections::VecDeque;

use belay_journal::{Loaded, WriteBuffer};

use crate::config::Config;
use crate::effect::Effect;
use crate::events::EventFollowers;
use crate::host::Host;
use crate::input::{Input, Moment};
use crate::owners::{Hooks, Lanes, Retention, Sessions};
use crate::requests::Requests;
use crate::runtime::{Context, Jobs, JournalWriter, StepCost, Timer, TimerKey, Work};
use crate::settings::SettingsEdits;
use crate::shims::Shims;
use crate::tasks::Tasks;

/// The daemon's whole state. What is durable is in the journal; the rest can be lost at any instant.
///
/// Each subsystem keeps its fields to itself: code outside a subsystem's folder sees its methods only.
pub struct Core<H: Host> {
    pub(crate) ctx: Context<H>,
    pub(crate) requests: Requests,
    pub(crate) tasks: Tasks,
    pub(crate) shims: Shims,
    pub(crate) events: EventFollowers,
    pub(crate) sessions: Sessions,
    pub(crate) lanes: Lanes,
    pub(crate) hooks: Hooks,
    pub(crate) retention: Retention,
    pub(crate) jobs: Jobs<H>,
    pub(crate) settings_edits: SettingsEdits<H>,
    pub(crate) backlog: VecDeque<Work>,
    pub(crate) idle: Option<TimerKey>,
    /// What goes on when the flush that is under way has ended.
    pub(crate) after_flush: Vec<AfterFlush<H>>,
    /// What an earlier daemon left, until it is adopted.
    loaded: Option<Loaded>,
    pub(crate) steps: StepCost,
}

/// What goes on when the journal has been flushed.
pub(crate) type AfterFlush<H> = Box<dyn FnOnce(&mut Core<H>)>;

impl<H: Host> std::fmt::Debug for Core<H> {
    /// Counts, not contents: a start that waits holds an environment.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("phase", &self.ctx.phase)
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}

impl<H: Host> Core<H> {
    pub fn new(host: H, config: Config, buffer: WriteBuffer, loaded: Loaded, now: Moment) -> Self {
        let kept_outputs = config.kept_outputs;
        let key = loaded.secret;
        Self {
            ctx: Context::new(host, config, JournalWriter::new(buffer), key, now),
            requests: Requests::default(),
            tasks: Tasks::new(kept_outputs),
            shims: Shims::default(),
            events: EventFollowers::default(),
            sessions: Sessions::default(),
            lanes: Lanes::default(),
            hooks: Hooks::default(),
            retention: Retention::default(),
            jobs: Jobs::default(),
            settings_edits: SettingsEdits::default(),
            backlog: VecDeque::new(),
            idle: None,
            after_flush: Vec::new(),
            loaded: Some(loaded),
            steps: StepCost::default(),
        }
    }

    /// The first thing a daemon does: adopts what an earlier one left.
    pub fn adopt(&mut self, now: Moment) -> Vec<Effect> {
        self.ctx.now = now;
        if let Some(loaded) = self.loaded.take() {
            self.adopt_tasks(loaded);
        }
        self.handle(now, Input::Tick)
    }

    /// One input: what has to be done about it, in order. The step's commit was tried before any of it; if it failed, effects that
    /// depend on it are held back and tried again.
    pub fn handle(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        let mut effects = self.handle_event(now, input);
        effects.append(&mut self.after_event());
        effects
    }

    /// The first half of a step, up to everything that a caller may wait for. [`Core::after_event`] has to follow.
    pub(crate) fn handle_event(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        self.ctx.now = now;
        self.dispatch(input);
        if self.has_uncommitted() && !self.ctx.journal.is_retrying() {
            self.commit_or_retry();
        }
        self.answer_detached_callers();
        self.ctx.effects.take()
    }

    /// The second half of a step: what no caller waits for, and whether there is anything left to do at all.
    pub(crate) fn after_event(&mut self) -> Vec<Effect> {
        self.start_hooks();
        self.watch_buffer();
        self.collect_now_and_then();
        self.refill_pool();
        self.watch_idleness();
        self.ctx.effects.release_behind_replies();
        self.close_drained_clients();
        self.exit_when_done();
        self.ctx.effects.take()
    }

    fn dispatch(&mut self, input: Input) {
        self.steps.begin(input.kind());
        match input {
            Input::ClientConnected { client, uid, ancestors, in_task } => {
                self.client_connected(client, uid, &ancestors, in_task);
            }
            Input::ClientLine { client, line } => self.client_line(client, &line),
            Input::ClientWritten { client, bytes } => self.client_written(client, bytes),
            Input::ClientHalfClosed { client } => self.requests.half_closed(client),
            Input::ClientGone { client } => self.client_gone(client),
            Input::ShimSpawned { shim, process } => self.shim_spawned(shim, process),
            Input::ShimNotSpawned { shim, error } => self.shim_not_spawned(shim, &error),
            Input::ShimConnected { shim } => self.shim_connected(shim),
            Input::ShimUnreachable { shim, error, left } => self.shim_unreachable(shim, &error, left),
            Input::ShimMessages { shim, messages } => self.shim_messages(shim, messages),
            Input::ShimGone { shim } => self.shim_gone(shim),
            Input::LostReaped { lost, result } => self.lost_reaped(&lost, result),
            Input::Searched { job, result } => self.searched(job, *result),
            Input::LineParsed { job, result } => self.line_parsed(job, result),
            Input::Sampled { job, sample } => self.sampled(job, *sample),
            Input::JournalRead { job, result } => self.journal_read(job, *result),
            Input::JournalFlushed(done) => self.journal_flushed(*done),
            Input::EventsExpired { job, result } => self.events_expired(job, result),
            Input::DirsRemoved { job, freed_bytes } => self.dirs_removed(job, freed_bytes),
            Input::OutputRead { job, result } => self.output_read_done(job, *result),
            Input::SettingsWritten { job, result } => self.settings_written(job, result),
            Input::Tick => self.tick(),
            Input::Continue => self.continue_backlog(),
            Input::Terminate => self.leave("signal"),
        }
    }

    /// When the next timer is due, in monotonic milliseconds. None: sleep until something arrives.
    pub fn next_deadline(&self) -> Option<u64> {
        self.ctx.next_deadline()
    }

    /// Runs one timer that is due. If more are, the loop calls again, after it has served others.
    fn tick(&mut self) {
        let Some(timer) = self.ctx.take_due_timer() else { return };
        self.steps.set_cause(timer.name());
        match timer {
            Timer::Reply(reply) => self.reply_due(reply),
            Timer::AdoptionDeadline => self.start_serving(),
            Timer::ReconnectShim(shim) => self.reconnect_shim(shim),
            Timer::CallerDeadline(task) => self.caller_missed(&task),
            Timer::OrphanOutput(shim, task) => self.orphan_output_due(shim, task),
            Timer::ResubmitDeadline(task) => self.resubmit_missed(&task),
            Timer::DropAcknowledged => self.drop_acknowledged_completions(),
            Timer::SampleBudgets => self.sample_budgets(),
            Timer::Lease(session) => self.lease_due(&session),
            Timer::Quiet(reply) => self.quiet_due(reply),
            Timer::StopWatchdog(shim) => self.check_stop_progress(shim),
            Timer::DeferredAcks => self.ctx.effects.release_delayed(),
            Timer::Idle => self.leave("idle"),
            Timer::RetryCommit => self.retry_commit(),
            Timer::Flush => self.flush_when_quiet(),
        }
    }

    pub(crate) fn crash_point(&self, point: crate::host::CrashPoint) {
        self.ctx.crash_point(point);
    }

    /// Clients that may be read from again.
    pub(crate) fn take_relieved(&mut self) -> Vec<crate::input::ClientId> {
        self.requests.take_relieved()
    }

    /// Whether the reply that a job is done for is still owed.
    pub(crate) fn is_owed(&self, job: crate::input::JobId) -> bool {
        self.requests.caller(crate::requests::ReplyId(job.0)).is_some()
    }

    /// Whether a client is not to be read from for now.
    pub(crate) fn is_saturated(&self, client: crate::input::ClientId) -> bool {
        self.requests.is_saturated(client)
    }

    /// Tells people something that was found out before the core existed.
    pub(crate) fn notice(&mut self, message: String, hint: &str) {
        self.ctx.notice(message, hint);
    }

    pub(crate) fn shim_pids(&self) -> Vec<i32> {
        self.shims.pids().collect()
    }

    pub(crate) fn shim_names(&self) -> Vec<String> {
        self.shims.names().map(str::to_owned).collect()
    }

    // --- what a step costs ---

    /// The loop around the core has measured one step.
    pub fn step_took(&mut self, cpu_us: u64, wall_us: u64) {
        self.steps.add(cpu_us, wall_us);
    }
}
