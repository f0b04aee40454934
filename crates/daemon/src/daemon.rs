//! The methods `daemon/hello`, `status`, `doctor`, `stop` and `gc`, which concern the daemon
//! itself.

use belay_journal::{Query, RowPredicate, Rows, TaskFilter};
use belay_model::{Level, StopOrder};
use belay_protocol::daemon::{
    BudgetEnforcement, BudgetEnforcer, DaemonDoctorResult, DaemonGcParams, DaemonHelloParams,
    DaemonHelloResult, DaemonStatusParams, DaemonStatusResult, DaemonStopParams, DaemonStopResult,
    DoctorFinding, FindingTopic, FindingVerdict, ROOM,
};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::life::SurvivorInfo;
use belay_protocol::shim::ProcessId;
use belay_protocol::task::StopCounts;
use belay_protocol::{Bytes, CLIENT_PROTOCOL, CLIENT_PROTOCOL_OLDEST, Timestamp};
use belay_record::convert::outcome_from_record;

use crate::config::bounds;
use crate::host::Host;
use crate::requests::check::{check_clock, check_text};
use crate::requests::{Answer, Caller, Client, Scope};
use crate::runtime::{Core, Work};
use crate::tasks::{AfterStops, StopManyReply, StoredTask};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The features of this daemon, for clients that support several versions.
const CAPABILITIES: &[&str] =
    &["tasks", "output", "events", "idempotency", "stdin", "sessions", "lanes", ROOM];

/// How many tasks with survivors the doctor examines, the newest first.
const SURVIVOR_TASKS: usize = 100;

impl<H: Host> Core<H> {
    pub(crate) fn hello(&mut self, caller: &Caller, params: &DaemonHelloParams) -> Result<Answer, RpcError> {
        if !(CLIENT_PROTOCOL_OLDEST..=CLIENT_PROTOCOL).contains(&params.protocol) {
            let shown = |text: &str| text.chars().filter(|c| !c.is_control()).take(60).collect::<String>();
            let (name, version) = (shown(&params.client.name), shown(&params.client.version));
            let message = format!(
                "{name} {version} speaks protocol {}, and this daemon ({VERSION}) speaks {CLIENT_PROTOCOL_OLDEST} to {CLIENT_PROTOCOL}",
                params.protocol
            );
            let hint = if params.protocol > CLIENT_PROTOCOL {
                "the daemon is older than the client: run belay down, and the next command starts the new daemon; tasks run on"
            } else {
                "the client is older than the daemon: install the newer belay"
            };
            return Err(RpcError::new(ErrorKind::Version, message).field("protocol").hint(hint));
        }
        if self.requests.client(caller.client).is_some_and(Client::has_said_hello) {
            let message =
                "daemon/hello was called before on this connection, which fixed what the connection may do";
            return Err(RpcError::new(ErrorKind::WrongState, message).hint("open another connection"));
        }
        check_text("client.name", Some(&params.client.name), bounds::NAME_BYTES)?;
        check_text("client.version", Some(&params.client.version), bounds::NAME_BYTES)?;
        let scope = self.authenticate(caller.client, params)?;
        Ok(caller.answer(&DaemonHelloResult {
            version: VERSION.to_owned(),
            protocol: CLIENT_PROTOCOL,
            pid: own_pid(),
            home: Bytes::from(self.ctx.config.home.clone().into_os_string()),
            capabilities: CAPABILITIES.iter().map(|&text| text.to_owned()).collect(),
            scope: scope.info(),
        }))
    }

    pub(crate) fn daemon_status(&self, caller: &Caller, params: DaemonStatusParams) -> Answer {
        let config = &self.ctx.config;
        let result = DaemonStatusResult {
            version: VERSION.to_owned(),
            pid: own_pid(),
            home: Bytes::from(config.home.clone().into_os_string()),
            runtime_dir: Bytes::from(config.runtime_dir.clone().into_os_string()),
            started_at: Timestamp(self.ctx.started.wall_ms),
            uptime_ms: self.ctx.now.mono_ms.saturating_sub(self.ctx.started.mono_ms),
            tasks_live: self.tasks.len() as u64,
            tasks_ended: self.retention.ended_count(),
            output_bytes: self.retention.output_bytes(),
            journal_bytes: self.ctx.journal.file_bytes(),
            events_first: self.ctx.journal.first_event(),
            events_last: self.ctx.journal.last_event(),
            clients: self.requests.client_count() as u64,
            calls_waiting: self.requests.reply_count() as u64,
            shims_ready: self.shims.ready_count() as u64,
            containment: config.containment.clone(),
            idle_exit_ms: config.idle_exit.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            steps: self.steps.info(params.step_kinds),
            // Notices may name tasks of other callers.
            notices: self.ctx.notices().filter(|_| self.scope(caller) == Scope::Person).cloned().collect(),
        };
        caller.answer(&result)
    }

    pub(crate) fn daemon_doctor(&mut self, caller: &Caller) -> Result<Answer, RpcError> {
        self.only_a_person(caller, "run the doctor")?;
        // The text of a stored end with at least one survivor.
        let predicate = Some(RowPredicate::new(|row| row.body.contains("\"survivors\":[{")));
        let filter =
            TaskFilter { ended: Some(true), limit: SURVIVOR_TASKS, predicate, ..TaskFilter::default() };
        self.await_worker(caller, |core, finish| {
            core.read_journal(Query::List(filter), move |core, rows| {
                let make = move |core: &mut Self, caller: &Caller| {
                    Ok(caller.answer(&DaemonDoctorResult { findings: core.findings(rows) }))
                };
                finish(core, Box::new(make));
            });
        });
        Ok(Answer::Later)
    }

    fn findings(&self, with_survivors: Result<Rows, RpcError>) -> Vec<DoctorFinding> {
        let mut findings = vec![self.containment_finding(), self.budgets_finding(), self.tasks_finding()];
        findings.extend(self.journal_finding());
        findings.extend(self.survivor_findings(with_survivors));
        findings.extend(self.shim_findings());
        findings.extend(self.ctx.notices().map(|notice| DoctorFinding {
            verdict: FindingVerdict::Warning,
            topic: FindingTopic::Notice,
            message: format!("{} ({})", notice.message, notice.at),
            hint: notice.hint.clone(),
        }));
        findings.push(finding(
            FindingVerdict::Note,
            FindingTopic::Outside,
            "processes that a task starts through an outside server (cron, docker, systemd, a running tmux) are not held",
        ));
        findings
    }

    fn containment_finding(&self) -> DoctorFinding {
        let containment = &self.ctx.config.containment;
        let with_cgroup = containment.cgroup.is_some();
        let message = if with_cgroup {
            format!("each task is held by a subreaper and a cgroup of its own: {}", containment.why)
        } else {
            format!("each task is held by a subreaper, without a cgroup: {}", containment.why)
        };
        let hint = (!with_cgroup).then(|| {
            "only a child that runs as another user escapes a subreaper; if the daemon and then a shim are killed, an \
             orphan that left its session and cleared its environment is not found, and the end of the task says so; \
             to use cgroups, run the daemon in a delegated scope: systemd-run --user --scope -p Delegate=yes belay up"
                .to_owned()
        });
        let verdict = if with_cgroup { FindingVerdict::Ok } else { FindingVerdict::Note };
        DoctorFinding { verdict, topic: FindingTopic::Containment, message, hint }
    }

    /// How each budget of a task is enforced here.
    fn budgets_finding(&self) -> DoctorFinding {
        let BudgetEnforcement { memory, processes, why } = &self.ctx.config.containment.budgets;
        let kernel = "enforced by the kernel";
        let sampled = "sampled four times a second, so it can be exceeded for a moment";
        let how =
            |enforcer: &BudgetEnforcer| if *enforcer == BudgetEnforcer::Kernel { kernel } else { sampled };
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let message = format!(
            "output is counted as it is written; memory: {}; processes: {}{why}",
            how(memory),
            how(processes)
        );
        let all = *memory == BudgetEnforcer::Kernel && *processes == BudgetEnforcer::Kernel;
        finding(if all { FindingVerdict::Ok } else { FindingVerdict::Note }, FindingTopic::Budgets, &message)
    }

    fn tasks_finding(&self) -> DoctorFinding {
        let ended = self.retention.ended_count();
        finding(
            FindingVerdict::Ok,
            FindingTopic::Tasks,
            &format!("{} live, {ended} ended and kept", self.tasks.len()),
        )
    }

    /// Journal files that were removed while the daemon has them open: their contents are lost when
    /// the daemon exits.
    fn journal_finding(&self) -> Option<DoctorFinding> {
        let missing = self.ctx.journal.missing_files();
        let names = missing.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
        let names = names.collect::<Vec<_>>().join(", ");
        let home = self.ctx.config.home.display();
        (!missing.is_empty()).then(|| DoctorFinding {
            verdict: FindingVerdict::Problem,
            topic: FindingTopic::Journal,
            message: format!(
                "missing from {home}: {names}; the daemon still has the files open, and their contents are lost when it exits"
            ),
            hint: Some(
                "if the files were moved, move them back; else save what you need (belay ps -a --json, belay events \
                 --json), then run belay down: the next daemon creates a new journal and imports the running tasks, but \
                 not ended tasks, sessions and lanes"
                    .to_owned(),
            ),
        })
    }

    /// Processes that survived the stop of their task and are still alive.
    fn survivor_findings(&self, rows: Result<Rows, RpcError>) -> Vec<DoctorFinding> {
        let Ok(Rows::List(page)) = rows else { return Vec::new() };
        let tasks = page.tasks.into_iter().filter_map(|row| StoredTask::from_row(row).ok());
        let here = tasks.filter(|stored| stored.doc.boot == self.ctx.boot);
        here.filter_map(|stored| self.survivor_finding(&stored)).collect()
    }

    fn survivor_finding(&self, stored: &StoredTask) -> Option<DoctorFinding> {
        let outcome = stored.doc.end.as_ref().map(outcome_from_record)?;
        let is_alive = |process: &&SurvivorInfo| {
            self.ctx.host.is_alive(ProcessId { pid: process.pid, start_ticks: process.start_ticks })
        };
        let alive: Vec<&SurvivorInfo> = outcome.survivors().iter().filter(is_alive).collect();
        let pids = alive.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(" ");
        let first = alive.first()?;
        Some(DoctorFinding {
            verdict: FindingVerdict::Problem,
            topic: FindingTopic::Survivors,
            message: format!(
                "could not stop all processes of task {}: {} still alive, such as pid {} ({}, user {})",
                stored.id,
                alive.len(),
                first.pid,
                first.command,
                self.ctx.host.user_name(first.uid)
            ),
            hint: Some(format!("as their owner or as root, run: kill -9 {pids}")),
        })
    }

    fn shim_findings(&self) -> Vec<DoctorFinding> {
        let silent = self.shims.unresponsive().map(|(task, pid)| DoctorFinding {
            verdict: FindingVerdict::Problem,
            topic: FindingTopic::Shims,
            message: format!("the shim of task {task} does not answer (pid {pid})"),
            hint: Some(format!(
                "if it is suspended, run kill -CONT {pid}; or kill it: the daemon then kills the process tree of its task"
            )),
        });
        silent.collect()
    }

    pub(crate) fn daemon_stop(
        &mut self,
        caller: &Caller,
        params: &DaemonStopParams,
    ) -> Result<Answer, RpcError> {
        check_clock("grace_ms", params.grace_ms)?;
        self.only_a_person(caller, "stop the daemon")?;
        if !params.stop_tasks || self.tasks.is_empty() {
            let left_running = self.tasks.len() as u64;
            self.reply(caller, &DaemonStopResult { counts: StopCounts::default(), left_running });
            self.leave(&self.actor(caller, Some("belay down")));
            return Ok(Answer::Sent);
        }
        let actor = self.actor(caller, Some("belay down"));
        let order = StopOrder {
            grace_ms: params.grace_ms,
            ..StopOrder::new(Level::Terminate, actor, params.reason.as_deref())
        };
        let open: Vec<String> = self.tasks.ids().cloned().collect();
        let within = open.iter().map(|id| self.stop_deadline_ms(id, &order)).max();
        let stops = StopManyReply::new(&open, order.clone(), AfterStops::Leave);
        self.defer_reply(caller.clone(), stops, within);
        self.leave_after(&open, &order.actor);
        let fence_for = Some(caller.clone());
        self.do_in_slices(Work::Stop { tasks: open.into(), order, fence_for });
        Ok(Answer::Later)
    }

    /// Replies to `daemon/stop`: the tasks have been stopped, except for `left` tasks.
    pub(crate) fn finish_leaving(&mut self, caller: &Caller, counts: StopCounts, left: usize) {
        self.reply_behind_parts(caller, &DaemonStopResult { counts, left_running: left as u64 });
        // Calls that wait for tasks that could not be stopped in time.
        self.refuse_pending_replies(&[]);
    }

    pub(crate) fn daemon_gc(&mut self, caller: &Caller, params: &DaemonGcParams) -> Result<Answer, RpcError> {
        self.only_a_person(caller, "remove ended tasks of other callers")?;
        Ok(self.collect(caller, params.all, params.dry_run))
    }
}

fn finding(verdict: FindingVerdict, topic: FindingTopic, message: &str) -> DoctorFinding {
    DoctorFinding { verdict, topic, message: message.to_owned(), hint: None }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(0)
}
