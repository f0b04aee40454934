//! Hooks: commands that run when a task has ended. A hook is stored in the same commit as the end it belongs to; its run is a
//! task like others, and the stored hook is removed with that task's own end. So there is no instant at which a crash of the
//! daemon could lose a hook or run it twice.

use std::collections::BTreeMap;

use belay_journal::Loaded;
use belay_protocol::Bytes;
use belay_protocol::error::RpcError;
use belay_protocol::life::{ClockName, End, StartStage, StopCause};
use belay_protocol::shim::EndRecord;
use belay_protocol::task::{
    AnswerWhen, Budgets, Command, NoLimit, OnDisconnect, Outcome, StartParams, TaskInfo,
};
use belay_protocol::vars;
use serde::{Deserialize, Serialize};

use super::STANDING;
use crate::config::bounds;
use crate::host::Host;
use crate::runtime::{Core, Phase};
use crate::settings;
use crate::tasks::{Place, StoredTask, TaskEnded};

/// The kind of their documents in the journal.
const DOC_KIND: &str = "hook";

/// A task's part in a hook. Neither part has hooks itself: else there would be no end of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HookPart {
    /// The run of the hook with this key.
    Run(String),
    /// Started by one.
    Below,
}

/// A hook as it is stored in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HookDoc {
    /// The task that has ended.
    task: String,
    command: Command,
    cwd: Bytes,
    /// What its environment says about the task.
    facts: BTreeMap<String, String>,
    /// How often it was started.
    tries: u32,
    /// The session and lineage of the task, if its own caller wants the hook: it runs there, too.
    #[serde(default)]
    place: Option<(String, Vec<String>)>,
}

/// Hooks that wait for their run or are running, by the key of their document.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    waiting: BTreeMap<String, HookDoc>,
    running: BTreeMap<String, HookDoc>,
}

/// Checks the line of a hook.
pub(crate) fn check(line: Option<&str>) -> Result<(), RpcError> {
    match line {
        Some(line) if line.trim().is_empty() => Err(RpcError::invalid("notify", "the line is empty")
            .hint("leave it out, or give it a line for the shell")),
        Some(line) if line.contains('\0') => {
            Err(RpcError::invalid("notify", "there is a zero byte in the line"))
        }
        Some(line) if line.len() > bounds::HOOK_LINE_BYTES => {
            let message = format!("the line is longer than {} bytes", bounds::HOOK_LINE_BYTES);
            Err(RpcError::invalid("notify", message).hint("put it into a script"))
        }
        _ => Ok(()),
    }
}

impl<H: Host> Core<H> {
    /// A task has ended: its hooks are stored in the same commit. If it was the run of a hook, that one is done.
    pub(crate) fn enqueue_hooks(&mut self, ended: &TaskEnded) {
        let stored = ended.stored();
        match &stored.doc.hook {
            Some(HookPart::Run(key)) => return self.hook_run_ended(key, stored.doc.end.as_ref()),
            Some(HookPart::Below) => return,
            None => {}
        }
        let line = |line: &String| Command::Line { line: Bytes::from(line.as_str()), shell: None };
        let own = stored.doc.notify.as_ref().map(line);
        let set = self.ctx.config.on_end.as_ref().map(|hook| match hook {
            settings::Hook::Line(text) => line(text),
            settings::Hook::Program(words) => {
                Command::Argv(words.iter().map(|word| Bytes::from(word.as_str())).collect())
            }
        });
        let keys = [(own, stored.id.clone()), (set, format!("{}.on_end", stored.id))];
        for (command, key) in keys {
            let Some(command) = command else { continue };
            let lineage = stored.doc.lineage.iter().cloned().chain([stored.id.clone()]).collect();
            let doc = HookDoc {
                task: stored.id.clone(),
                command,
                cwd: stored.doc.cwd.clone(),
                facts: facts(ended.info()),
                tries: 0,
                place: (key == stored.id).then(|| (stored.session.clone(), lineage)),
            };
            self.store_hook(&key, Some(&doc));
            self.hooks.waiting.insert(key, doc);
        }
    }

    /// A run that certainly never began, for want of a shim, is repeated; any other has been run.
    fn hook_run_ended(&mut self, key: &str, end: Option<&EndRecord>) {
        let never_began = end
            .is_some_and(|end| matches!(&end.end, End::Spawn { error } if error.stage == StartStage::Holder));
        let Some(doc) = self.hooks.running.remove(key) else { return self.store_hook(key, None) };
        if never_began && doc.tries < bounds::HOOK_TRIES {
            tracing::info!(hook = key, tries = doc.tries, "hook was not started: it is tried again");
            self.hooks.waiting.insert(key.to_owned(), doc);
            return;
        }
        if never_began {
            self.ctx.notice(
                format!("the hook of task {key} could not be started"),
                "belay ps -a shows the tries",
            );
        }
        self.store_hook(key, None);
    }

    fn store_hook(&mut self, key: &str, doc: Option<&HookDoc>) {
        // A hook always serialises.
        let body = doc.map(|doc| serde_json::to_string(doc).unwrap_or_default());
        self.ctx.journal.put_doc(DOC_KIND, key, body);
    }

    /// What an earlier daemon has left to be run.
    pub(crate) fn load_hooks(&mut self, loaded: &mut Loaded) {
        for (key, body) in loaded.docs.remove(DOC_KIND).unwrap_or_default() {
            match serde_json::from_str(&body) {
                Ok(doc) => drop(self.hooks.waiting.insert(key, doc)),
                Err(error) => {
                    self.ctx
                        .notice(format!("the hook of task {key} cannot be read: {error}"), "it is not run");
                    self.store_hook(&key, None);
                }
            }
        }
    }

    /// A live task of an earlier daemon may be the run of a hook.
    pub(crate) fn hook_run_adopted(&mut self, stored: &StoredTask) {
        if let Some(HookPart::Run(key)) = &stored.doc.hook
            && let Some(doc) = self.hooks.waiting.remove(key)
        {
            self.hooks.running.insert(key.clone(), doc);
        }
    }

    /// What a task inherits of its parent's part in a hook.
    pub(crate) fn hook_part_below(&self, parent: Option<&str>) -> Option<HookPart> {
        let parent = parent.and_then(|parent| self.tasks.get(parent))?;
        parent.stored().doc.hook.as_ref().map(|_| HookPart::Below)
    }

    /// Starts waiting hooks, as many at once as is allowed. A daemon that leaves, leaves them to the next.
    pub(crate) fn start_hooks(&mut self) {
        let is_serving = self.ctx.phase == Phase::Serving;
        if self.hooks.waiting.is_empty() || !is_serving || self.ctx.journal.is_retrying() {
            return;
        }
        let free = bounds::HOOKS.saturating_sub(self.hooks.running.len());
        let due: Vec<String> = self.hooks.waiting.keys().take(free).cloned().collect();
        for key in due {
            if self.tasks.len() >= self.ctx.config.max_tasks {
                return;
            }
            if let Err(error) = self.start_hook(&key) {
                self.ctx.notice(
                    format!("the hook of task {key} cannot be started: {error}"),
                    "it is tried again",
                );
                return self.retry_commit_later();
            }
        }
    }

    /// The start is recorded with how often it was tried; only then it goes to a shim.
    fn start_hook(&mut self, key: &str) -> Result<(), RpcError> {
        let Some(hook) = self.hooks.waiting.get(key) else { return Ok(()) };
        let doc = HookDoc { tries: hook.tries + 1, ..hook.clone() };
        let params = self.hook_params(key, &doc);
        let command = self.prepare_command(&params);
        let (mut stored, start) = self.compose(&params, command, hook_place(&doc), None)?;
        stored.doc.hook = Some(HookPart::Run(key.to_owned()));
        let id = stored.id.clone();
        let shim = self.take_ready_shim(&mut stored, start.held);
        let mark = self.ctx.journal.mark();
        self.store_hook(key, Some(&doc));
        if let Err(error) = self.record_start(stored, start, None) {
            self.ctx.journal.take_back(mark);
            self.shims.put_back_ready(shim);
            return Err(error);
        }
        tracing::debug!(hook = key, run = id, tries = doc.tries, "hook started");
        self.hooks.waiting.remove(key);
        self.hooks.running.insert(key.to_owned(), doc);
        self.send_start_or_wait(&id, shim);
        Ok(())
    }

    fn hook_params(&self, key: &str, doc: &HookDoc) -> StartParams {
        let is_there = self.ctx.host.is_dir(std::path::Path::new(doc.cwd.as_os_str()));
        let token = match doc.tries {
            1 => format!("{DOC_KIND}:{key}"),
            n => format!("{DOC_KIND}:{key}:{n}"),
        };
        StartParams {
            command: doc.command.clone(),
            cwd: if is_there { doc.cwd.clone() } else { Bytes::from("/") },
            env: self.ctx.config.hook_env.clone(),
            set_env: doc
                .facts
                .iter()
                .map(|(name, value)| (name.clone(), Bytes::from(value.as_str())))
                .collect(),
            name: Some(format!("notify {}", doc.task)),
            umask: None,
            rlimits: Vec::new(),
            stdin: false,
            pty: None,
            stdin_from: None,
            merge: false,
            detached: true,
            timeout_ms: None,
            on_timeout: None,
            on_disconnect: OnDisconnect::default(),
            ttl_ms: Some(bounds::HOOK_TTL_MS),
            silence_ms: None,
            // The settings' limits for every task do not apply to the person's own hooks; a session's apply to its own.
            no_limits: if doc.place.is_none() {
                vec![NoLimit::Timeout, NoLimit::Silence]
            } else {
                Vec::new()
            },
            grace_ms: None,
            output_limit_bytes: None,
            budgets: Budgets::default(),
            notify: None,
            // A caller that has used this very token before has no hold on the hook.
            token: Some(token).filter(|token| self.tasks.by_token(token).is_none()),
            stall: None,
            retries: 0,
            retry_delay_ms: None,
            session: None,
            keep: false,
            lane: None,
            answer: AnswerWhen::Started,
            follow: false,
        }
    }
}

/// A hook of a task's caller belongs where the task belonged, and is bound as it was. A hook of the settings is the person's
/// own.
fn hook_place(doc: &HookDoc) -> Place {
    let parent = Some(doc.task.clone());
    let (session, lineage) = doc.place.clone().unwrap_or_else(|| (STANDING.to_owned(), Vec::new()));
    Place { session, parent, lineage }
}

/// What the environment of a hook says about the task; what is not known is left out.
fn facts(task: &TaskInfo) -> BTreeMap<String, String> {
    let outcome = task.outcome.as_ref();
    let receipt = outcome.and_then(Outcome::receipt);
    let reason = outcome.and_then(|outcome| match outcome {
        Outcome::Spawn { error, .. } => Some(error.message.as_str()),
        Outcome::Budget { budget, .. } => Some(budget.name.name()),
        Outcome::StopFailed { cause: StopCause::Budget { budget, .. }, .. } => Some(budget.name()),
        other => other.reason().or_else(|| other.clock().map(ClockName::name)),
    });
    let actor = outcome.and_then(Outcome::actor).or_else(|| receipt.map(|receipt| receipt.actor.as_str()));
    let all = [
        ("ID", Some(task.id.clone())),
        ("NAME", task.name.clone()),
        ("STATUS", Some(task.status.name().to_owned())),
        ("EXIT_CODE", outcome.and_then(Outcome::exit_code).map(|code| code.to_string())),
        ("SIGNAL", outcome.and_then(Outcome::signal).map(|signal| signal.to_string())),
        ("COMMAND", Some(task.command.clone())),
        ("SESSION", Some(task.session.clone())),
        ("STARTED_AT", task.started_at.map(|at| at.to_string())),
        ("ENDED_AT", task.ended_at.map(|at| at.to_string())),
        ("OUTPUT_BYTES", Some(task.output.bytes.to_string())),
        ("REASON", reason.map(str::to_owned)),
        ("ACTOR", actor.map(str::to_owned)),
    ];
    let told =
        all.into_iter().filter_map(|(name, value)| Some((format!("{}{name}", vars::TASK_FACT), cut(value?))));
    told.collect()
}

/// The kernel takes no variable of any length, and none with a zero byte in it.
fn cut(text: String) -> String {
    let mut text = text.replace('\0', "");
    let end = text.floor_char_boundary(bounds::HOOK_FACT_BYTES);
    text.truncate(end);
    text
}
