//! `daemon/hello status doctor stop gc`: the daemon itself.

use belay_journal::TaskFilter;
use belay_model::{Level, StopOrder};
use belay_protocol::daemon::{
    BudgetsHeld, DoctorResult, Enforcer, Finding, GcParams, HelloParams, HelloResult, NoticeInfo, ROOM,
    StatusResult, StopDaemonResult, StopParams, Topic, Verdict,
};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::life::SurvivorInfo;
use belay_protocol::shim::ProcessId;
use belay_protocol::task::StopResult;
use belay_protocol::{Bytes, CLIENT_PROTOCOL, CLIENT_PROTOCOL_OLDEST, Timestamp};
use belay_record::convert::outcome_from_record;

use super::check::check_clock;
use super::task_stop::{StopMany, Then};
use crate::answer::{Caller, What};
use crate::config::bounds;
use crate::core::{Core, ShimStage};
use crate::doc::Entry;
use crate::record::journal_error;
use crate::rights::Scope;
use crate::world::World;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What this daemon can do, for clients that can do more than one thing.
const CAPABILITIES: &[&str] =
    &["tasks", "output", "events", "idempotency", "stdin", "sessions", "lanes", ROOM];

/// How many tasks with survivors the doctor looks at, the newest first.
const SURVIVOR_TASKS: usize = 100;

impl<W: World> Core<W> {
    pub(crate) fn hello(&mut self, caller: &Caller, params: &HelloParams) {
        if !(CLIENT_PROTOCOL_OLDEST..=CLIENT_PROTOCOL).contains(&params.protocol) {
            let who: String = params.client.chars().filter(|c| !c.is_control()).take(60).collect();
            let message = format!(
                "{who} speaks protocol {}, and this daemon ({VERSION}) speaks {CLIENT_PROTOCOL_OLDEST} to {CLIENT_PROTOCOL}",
                params.protocol
            );
            let hint = if params.protocol > CLIENT_PROTOCOL {
                "the daemon is older than the client: belay down, and the next call starts the new one; tasks run on"
            } else {
                "the client is older than the daemon: install the newer belay"
            };
            let error = RpcError::new(ErrorKind::Version, message).field("protocol").hint(hint);
            return self.fail(caller, error);
        }
        let scope = match self.greet(caller.client, params.token.as_deref()) {
            Ok(scope) => scope,
            Err(error) => return self.fail(caller, error),
        };
        let result = HelloResult {
            version: VERSION.to_owned(),
            protocol: CLIENT_PROTOCOL,
            pid: own_pid(),
            home: Bytes::from(self.config.home.clone().into_os_string()),
            capabilities: CAPABILITIES.iter().map(|&text| text.to_owned()).collect(),
            scope: scope.info(),
        };
        self.reply(caller, &result);
    }

    pub(crate) fn daemon_status(&mut self, caller: &Caller) {
        let counts = self.journal.counts();
        let result = StatusResult {
            version: VERSION.to_owned(),
            pid: own_pid(),
            home: Bytes::from(self.config.home.clone().into_os_string()),
            runtime_dir: Bytes::from(self.config.runtime_dir.clone().into_os_string()),
            started_at: Timestamp(self.started.wall_ms),
            uptime_ms: self.now.mono_ms.saturating_sub(self.started.mono_ms),
            tasks_live: self.tasks.len() as u64,
            tasks_ended: counts.ended,
            output_bytes: counts.output_bytes,
            journal_bytes: self.journal.file_bytes(),
            events_first: counts.first_event,
            events_last: counts.last_event,
            clients: self.clients.len() as u64,
            calls_waiting: self.pending.len() as u64,
            shims_ready: self.ready.len() as u64,
            containment: self.config.containment.clone(),
            idle_exit_ms: self
                .config
                .idle_exit
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            // They name the tasks of others.
            notices: self.notices.iter().filter(|_| self.scope(caller) == Scope::Person).cloned().collect(),
        };
        self.reply(caller, &result);
    }

    pub(crate) fn daemon_doctor(&mut self, caller: &Caller) {
        if let Err(error) = self.only_a_person(caller, "look at everything") {
            return self.fail(caller, error);
        }
        let mut findings = vec![self.containment_finding()];
        findings.push(self.budgets_finding());
        findings.push(self.tasks_finding());
        findings.extend(self.journal_finding());
        findings.extend(self.survivor_findings());
        findings.extend(self.shim_findings());
        findings.extend(self.notices.iter().map(|notice| Finding {
            verdict: Verdict::Warning,
            topic: Topic::Notice,
            message: format!("{} ({})", notice.message, notice.at),
            hint: notice.hint.clone(),
        }));
        findings.push(finding(
            Verdict::Note,
            Topic::Outside,
            "what a task hands to an outside server (cron, docker, systemd, a running tmux) is not held",
        ));
        self.reply(caller, &DoctorResult { findings });
    }

    /// Something that people should know of, once.
    pub(crate) fn notice(&mut self, message: String, hint: &str) {
        if self.notices.back().is_some_and(|last| last.message == message) {
            return;
        }
        if self.notices.len() == bounds::NOTICES {
            self.notices.pop_front();
        }
        let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
        self.notices.push_back(NoticeInfo { at: Timestamp(self.now.wall_ms), message, hint });
    }

    fn containment_finding(&self) -> Finding {
        let containment = &self.config.containment;
        let with_cgroup = containment.cgroup.is_some();
        let message = if with_cgroup {
            format!("each task is held by a subreaper and a cgroup of its own: {}", containment.why)
        } else {
            format!("each task is held by a subreaper, without a cgroup: {}", containment.why)
        };
        let hint = (!with_cgroup).then(|| {
            "nothing escapes a subreaper but a child that runs as another user; if the daemon and then a shim is killed, \
             an orphan of its task that left its session and its environment is not found, and the task's end says so; \
             for cgroups too, run the daemon in a delegated scope: systemd-run --user --scope -p Delegate=yes belay up"
                .to_owned()
        });
        let verdict = if with_cgroup { Verdict::Ok } else { Verdict::Note };
        Finding { verdict, topic: Topic::Containment, message, hint }
    }

    /// How each budget of a task is enforced here.
    fn budgets_finding(&self) -> Finding {
        let BudgetsHeld { memory, processes, why } = &self.config.containment.budgets;
        let kernel = "enforced by the kernel";
        let sampled = "looked at four times a second, so that it can be exceeded for a moment";
        let how = |enforcer: &Enforcer| if *enforcer == Enforcer::Kernel { kernel } else { sampled };
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let message = format!(
            "output is counted as it is written; memory: {}; processes: {}{why}",
            how(memory),
            how(processes)
        );
        let all = *memory == Enforcer::Kernel && *processes == Enforcer::Kernel;
        finding(if all { Verdict::Ok } else { Verdict::Note }, Topic::Budgets, &message)
    }

    fn tasks_finding(&self) -> Finding {
        let ended = self.journal.counts().ended;
        finding(Verdict::Ok, Topic::Tasks, &format!("{} live, {ended} ended and kept", self.tasks.len()))
    }

    /// Somebody has taken the files away under us: all is well until the daemon leaves, and then all of it is gone.
    fn journal_finding(&self) -> Option<Finding> {
        let missing = self.journal.missing_files();
        let names = missing.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
        let names = names.collect::<Vec<_>>().join(", ");
        let home = self.config.home.display();
        (!missing.is_empty()).then(|| Finding {
            verdict: Verdict::Problem,
            topic: Topic::Journal,
            message: format!(
                "no longer in {home}: {names}; the daemon goes on with what it has open, and when it leaves that is gone"
            ),
            hint: Some(
                "if the files were moved, move them back; else save what you need (belay ps -a --json, belay events \
                 --json), then belay down: the next daemon begins a new journal, takes in the tasks that run, and knows \
                 nothing of those that have ended, of sessions and of lanes"
                    .to_owned(),
            ),
        })
    }

    /// Whoever could not be stopped, and has not gone since: of those we said that they live, and they still do.
    fn survivor_findings(&self) -> Vec<Finding> {
        // As it stands in the record of an end that has any.
        let mentions = Some("\"survivors\":[{".to_owned());
        let filter =
            TaskFilter { ended: Some(true), limit: SURVIVOR_TASKS, mentions, ..TaskFilter::default() };
        let rows = self.journal.tasks(&filter).unwrap_or_default();
        let entries = rows.into_iter().filter_map(|row| Entry::from_row(row).ok());
        let here = entries.filter(|entry| entry.doc.boot == self.boot);
        here.filter_map(|entry| self.survivor_finding(&entry)).collect()
    }

    fn survivor_finding(&self, entry: &Entry) -> Option<Finding> {
        let outcome = entry.doc.end.as_ref().map(outcome_from_record)?;
        let lives = |one: &SurvivorInfo| {
            self.world.is_alive(ProcessId { pid: one.pid, start_ticks: one.start_ticks })
        };
        let alive: Vec<SurvivorInfo> = outcome.survivors().iter().filter(|one| lives(one)).cloned().collect();
        let numbers = alive.iter().map(|one| one.pid.to_string()).collect::<Vec<_>>().join(" ");
        let one = alive.first()?;
        Some(Finding {
            verdict: Verdict::Problem,
            topic: Topic::Survivors,
            message: format!(
                "{} of the processes of {} could not be stopped and live on, such as {} ({}, of user {})",
                alive.len(),
                entry.id,
                one.pid,
                one.command,
                self.world.user_name(one.uid)
            ),
            hint: Some(format!("whoever may, as their owner or root, ends them with: kill -9 {numbers}")),
        })
    }

    fn shim_findings(&self) -> Vec<Finding> {
        let silent =
            self.shims.values().filter(|shim| shim.stage == ShimStage::Coming && shim.task.is_some());
        silent
            .map(|shim| Finding {
                verdict: Verdict::Problem,
                topic: Topic::Shims,
                message: format!(
                    "the shim of task {} does not answer (pid {})",
                    shim.task.as_deref().unwrap_or("?"),
                    shim.process.map_or(0, |process| process.pid)
                ),
                hint: Some(
                    "is it stopped? kill -CONT it, or kill it: its tree is then found and ended".to_owned(),
                ),
            })
            .collect()
    }

    pub(crate) fn daemon_stop(&mut self, caller: &Caller, params: &StopParams) {
        let checked = check_clock("grace_ms", params.grace_ms)
            .and_then(|()| self.only_a_person(caller, "end the daemon"));
        if let Err(error) = checked {
            return self.fail(caller, error);
        }
        if !params.stop_tasks || self.tasks.is_empty() {
            let left_running = self.tasks.len() as u64;
            self.reply(caller, &StopDaemonResult { receipts: Vec::new(), left_running });
            return self.leave();
        }
        let order = StopOrder {
            grace_ms: params.grace_ms,
            ..StopOrder::new(
                Level::Terminate,
                self.actor(caller, Some("belay down")),
                params.reason.as_deref(),
            )
        };
        let open: Vec<String> = self.tasks.keys().cloned().collect();
        let within = open.iter().map(|id| self.stop_deadline_ms(id, &order)).max();
        let many = StopMany { done: Vec::new(), open: open.clone(), order: order.clone(), then: Then::Leave };
        self.promise(caller.clone(), What::StopMany(Box::new(many)), within);
        for id in &open {
            self.fence_owner(caller, id, &order);
        }
        self.leave_after(&open);
        for id in open {
            self.order_stop(&id, order.clone());
        }
    }

    /// The tasks of a daemon that leaves have been stopped, but for so many.
    pub(crate) fn finish_leaving(&mut self, caller: &Caller, receipts: Vec<StopResult>, left: usize) {
        self.reply(caller, &StopDaemonResult { receipts, left_running: left as u64 });
        // Those that wait for what could not be stopped in time.
        self.refuse_promises(&[]);
    }

    pub(crate) fn daemon_gc(&mut self, caller: &Caller, params: &GcParams) {
        if let Err(error) = self.only_a_person(caller, "remove what others have left") {
            return self.fail(caller, error);
        }
        if !params.dry_run {
            return self.collect(caller.clone(), params.all);
        }
        match self.would_collect(params.all) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, journal_error(&error)),
        }
    }
}

fn finding(verdict: Verdict, topic: Topic, message: &str) -> Finding {
    Finding { verdict, topic, message: message.to_owned(), hint: None }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(0)
}
