//! Hooks: commands that run when a task has ended. A hook is stored in the same commit as the end
//! that triggers it; its run is an ordinary task, and the stored hook is removed in the same commit
//! as that task's end. So a crash of the daemon neither loses a hook nor runs it twice.

use std::collections::BTreeMap;

use belay_journal::Loaded;
use belay_protocol::Bytes;
use belay_protocol::error::RpcError;
use belay_protocol::life::{ClockName, StartStage, StopCause, TaskEnd};
use belay_protocol::shim::EndRecord;
use belay_protocol::task::{NoLimit, Outcome, ShellCommand, TaskInfo, TaskStartParams};
use belay_protocol::vars;
use serde::{Deserialize, Serialize};

use super::STANDING;
use crate::config::bounds;
use crate::host::Host;
use crate::runtime::{Core, Phase};
use crate::settings;
use crate::tasks::{Place, Starter, StoredTask, TaskEnded};

/// The kind of a hook's document in the journal.
const DOC_KIND: &str = "hook";

/// A task's part in a hook. A task with either part triggers no hooks, so that hooks cannot trigger
/// hooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HookPart {
    /// The run of the hook with this key.
    Run(String),
    /// Started by the run of a hook.
    Below,
}

/// A hook as it is stored in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HookDoc {
    /// The task that has ended.
    task: String,
    command: ShellCommand,
    cwd: Bytes,
    /// The variables that describe the task to the hook.
    facts: BTreeMap<String, String>,
    /// The number of attempts to start it.
    tries: u32,
    /// The session and lineage of the run, for a hook of the task's own caller. None for a hook of
    /// the settings.
    #[serde(default)]
    place: Option<(String, Vec<String>)>,
}

/// Hooks that are waiting or running, by the key of their document.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    waiting: BTreeMap<String, HookDoc>,
    running: BTreeMap<String, HookDoc>,
}

/// Checks the command line of a hook.
pub(crate) fn check(line: Option<&str>) -> Result<(), RpcError> {
    match line {
        Some(line) if line.trim().is_empty() => Err(RpcError::invalid("notify", "the line is empty")
            .hint("leave it out, or give a line for the shell")),
        Some(line) if line.contains('\0') => {
            Err(RpcError::invalid("notify", "the line contains a zero byte"))
        }
        Some(line) if line.len() > bounds::HOOK_LINE_BYTES => {
            let message = format!("the line is longer than {} bytes", bounds::HOOK_LINE_BYTES);
            Err(RpcError::invalid("notify", message).hint("put it into a script"))
        }
        _ => Ok(()),
    }
}

impl<H: Host> Core<H> {
    /// A task has ended: stores its hooks in the same commit. If the task was the run of a hook,
    /// that hook is done.
    pub(crate) fn enqueue_hooks(&mut self, ended: &TaskEnded) {
        let stored = ended.stored();
        match &stored.doc.hook {
            Some(HookPart::Run(key)) => return self.hook_run_ended(key, stored.doc.end.as_ref()),
            Some(HookPart::Below) => return,
            None => {}
        }
        let line = |line: &String| ShellCommand::Line { line: Bytes::from(line.as_str()), shell: None };
        let own = stored.doc.notify.as_ref().map(line);
        let set = self.ctx.config.on_end.as_ref().map(|hook| match hook {
            settings::Hook::Line(text) => line(text),
            settings::Hook::Program(words) => {
                ShellCommand::Argv { argv: words.iter().map(|word| Bytes::from(word.as_str())).collect() }
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

    /// A run that never began, because no shim could be started, is repeated. Any other run counts
    /// as done.
    fn hook_run_ended(&mut self, key: &str, end: Option<&EndRecord>) {
        let never_began = end.is_some_and(
            |end| matches!(&end.end, TaskEnd::Spawn { error } if error.stage == StartStage::Holder),
        );
        let Some(doc) = self.hooks.running.remove(key) else { return self.store_hook(key, None) };
        if never_began && doc.tries < bounds::HOOK_TRIES {
            tracing::info!(hook = key, tries = doc.tries, "hook was not started: retrying");
            self.hooks.waiting.insert(key.to_owned(), doc);
            return;
        }
        if never_began {
            self.ctx.notice(
                format!("the hook of task {key} could not be started"),
                "belay ps -a shows the attempts",
            );
        }
        self.store_hook(key, None);
    }

    fn store_hook(&mut self, key: &str, doc: Option<&HookDoc>) {
        // A hook always serialises.
        let body = doc.map(|doc| serde_json::to_string(doc).unwrap_or_default());
        self.ctx.journal.put_doc(DOC_KIND, key, body);
    }

    /// Loads the hooks that an earlier daemon stored and did not finish.
    pub(crate) fn load_hooks(&mut self, loaded: &mut Loaded) {
        for (key, body) in loaded.docs.remove(DOC_KIND).unwrap_or_default() {
            match serde_json::from_str(&body) {
                Ok(doc) => drop(self.hooks.waiting.insert(key, doc)),
                Err(error) => {
                    self.ctx.notice(
                        format!("the hook of task {key} cannot be read: {error}"),
                        "the hook is dropped",
                    );
                    self.store_hook(&key, None);
                }
            }
        }
    }

    /// Marks a hook as running if an adopted task is its run.
    pub(crate) fn hook_run_adopted(&mut self, stored: &StoredTask) {
        if let Some(HookPart::Run(key)) = &stored.doc.hook
            && let Some(doc) = self.hooks.waiting.remove(key)
        {
            self.hooks.running.insert(key.clone(), doc);
        }
    }

    /// The part in a hook that a task inherits from its parent.
    pub(crate) fn hook_part_below(&self, parent: Option<&str>) -> Option<HookPart> {
        let parent = parent.and_then(|parent| self.tasks.get(parent))?;
        parent.stored().doc.hook.as_ref().map(|_| HookPart::Below)
    }

    /// Starts waiting hooks, up to the bound. A daemon that is about to exit leaves them to the
    /// next daemon.
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

    /// Records the start with its number of attempts, and then sends it to a shim.
    fn start_hook(&mut self, key: &str) -> Result<(), RpcError> {
        let Some(hook) = self.hooks.waiting.get(key) else { return Ok(()) };
        let doc = HookDoc { tries: hook.tries + 1, ..hook.clone() };
        let params = self.hook_params(key, &doc);
        let command = self.prepare_command(&params);
        let (mut stored, start) = self.compose(&params, command, hook_place(&doc), Starter::hook(), None)?;
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

    fn hook_params(&self, key: &str, doc: &HookDoc) -> TaskStartParams {
        let cwd_exists = self.ctx.host.is_dir(std::path::Path::new(doc.cwd.as_os_str()));
        let token = match doc.tries {
            1 => format!("{DOC_KIND}:{key}"),
            n => format!("{DOC_KIND}:{key}:{n}"),
        };
        let cwd = if cwd_exists { doc.cwd.clone() } else { Bytes::from("/") };
        let facts = doc.facts.iter();
        TaskStartParams {
            env: self.ctx.config.hook_env.clone(),
            set_env: facts.map(|(name, value)| (name.clone(), Bytes::from(value.as_str()))).collect(),
            name: Some(format!("notify {}", doc.task)),
            detached: true,
            ttl_ms: Some(bounds::HOOK_TTL_MS),
            // The default limits of the settings do not apply to hooks of the settings. A session's
            // limits apply to its hooks.
            no_limits: if doc.place.is_none() {
                vec![NoLimit::Timeout, NoLimit::Silence]
            } else {
                Vec::new()
            },
            // A caller that has already used this token must not prevent the hook from running.
            token: Some(token).filter(|token| self.tasks.by_token(token).is_none()),
            ..TaskStartParams::new(doc.command.clone(), cwd)
        }
    }
}

/// A hook of a task's caller runs in the task's session, with the same access rights. A hook of the
/// settings runs in the standing session.
fn hook_place(doc: &HookDoc) -> Place {
    let parent = Some(doc.task.clone());
    let (session, lineage) = doc.place.clone().unwrap_or_else(|| (STANDING.to_owned(), Vec::new()));
    Place { session, parent, lineage }
}

/// The variables that describe the task to its hook. Unknown values are left out.
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
    let known =
        all.into_iter().filter_map(|(name, value)| Some((format!("{}{name}", vars::TASK_FACT), cut(value?))));
    known.collect()
}

/// The kernel limits the length of a variable and accepts no zero byte in it.
fn cut(text: String) -> String {
    let mut text = text.replace('\0', "");
    let end = text.floor_char_boundary(bounds::HOOK_FACT_BYTES);
    text.truncate(end);
    text
}
