//! Hooks: what is run when a task has ended. The wish is a document, written with the end it belongs to; the run is a task
//! like others, and the document goes with that one's own end. So there is no instant at which a death of the daemon could
//! lose the wish, or have it carried out twice.

use std::collections::BTreeMap;

use belay_journal::DocRow;
use belay_protocol::Bytes;
use belay_protocol::RpcError;
use belay_protocol::life::{ClockName, End, StartStage, StopCause};
use belay_protocol::shim::EndRecord;
use belay_protocol::task::{
    AnswerWhen, Budgets, Command, NoLimit, OnDisconnect, Outcome, StartParams, TaskInfo,
};
use belay_protocol::vars;
use serde::{Deserialize, Serialize};

use crate::admission::Place;
use crate::config::bounds;
use crate::core::{Core, Phase, Timer};
use crate::doc::Entry;
use crate::info::{Live, task_info};
use crate::sessions::STANDING;
use crate::settings;
use crate::world::World;

/// The kind of their documents.
const KIND: &str = "hook";

/// A task's part in a hook. None of these has hooks itself: else there would be no end of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HookPart {
    /// The run of the hook with this key.
    Run(String),
    /// Started by one.
    Below,
}

/// What is to be run, as it stands in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HookDoc {
    /// The task that has ended.
    task: String,
    command: Command,
    cwd: Bytes,
    /// What it is told of the task.
    facts: BTreeMap<String, String>,
    /// How often it was started.
    tries: u32,
    /// Where the task was, if it is the wish of whoever started it: there it is run, too.
    #[serde(default)]
    place: Option<(String, Vec<String>)>,
}

#[derive(Debug)]
pub(crate) struct Hook {
    doc: HookDoc,
    /// There is a task that runs it, or will.
    running: bool,
}

/// What can be wrong with the line of a hook.
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

impl<W: World> Core<W> {
    /// A task has ended: what is to be run goes into the batch with its end. If it was the run of a hook, that is done with.
    pub(crate) fn wish_for_hooks(&mut self, entry: &Entry) {
        match &entry.doc.hook {
            Some(HookPart::Run(key)) => return self.hook_ended(key, entry.doc.end.as_ref()),
            Some(HookPart::Below) => return,
            None => {}
        }
        let line = |line: &String| Command::Line { line: Bytes::from(line.as_str()), shell: None };
        let own = entry.doc.notify.as_ref().map(line);
        let set = self.config.on_end.as_ref().map(|hook| match hook {
            settings::Hook::Line(text) => line(text),
            settings::Hook::Program(words) => {
                Command::Argv(words.iter().map(|word| Bytes::from(word.as_str())).collect())
            }
        });
        let keys = [(own, entry.id.clone()), (set, format!("{}.on_end", entry.id))];
        for (command, key) in keys {
            let Some(command) = command else { continue };
            let facts = facts(&task_info(entry, Live::default()));
            let lineage = entry.doc.lineage.iter().cloned().chain([entry.id.clone()]).collect();
            let place = (key == entry.id).then(|| (entry.session.clone(), lineage));
            let cwd = entry.doc.cwd.clone();
            let doc = HookDoc { task: entry.id.clone(), command, cwd, facts, tries: 0, place };
            self.put_hook(&key, Some(&doc));
            self.hooks.insert(key, Hook { doc, running: false });
        }
    }

    /// One that certainly never began, for want of a holder, is run again; any other has been run.
    fn hook_ended(&mut self, key: &str, end: Option<&EndRecord>) {
        let never_began = end
            .is_some_and(|end| matches!(&end.end, End::Spawn { error } if error.stage == StartStage::Holder));
        if let Some(hook) = self.hooks.get_mut(key)
            && never_began
        {
            if hook.doc.tries < bounds::HOOK_TRIES {
                hook.running = false;
                return;
            }
            self.notice(
                format!("the hook of task {key} could not be started"),
                "belay ps -a shows the tries",
            );
        }
        self.hooks.remove(key);
        self.put_hook(key, None);
    }

    fn put_hook(&mut self, key: &str, doc: Option<&HookDoc>) {
        // A document of ours always serialises.
        let body = doc.map(|doc| serde_json::to_string(doc).unwrap_or_default());
        self.batch.docs.push(DocRow { kind: KIND.to_owned(), key: key.to_owned(), body });
    }

    /// What an earlier daemon has left to be run.
    pub(crate) fn load_hooks(&mut self) -> Result<(), belay_journal::Error> {
        for (key, body) in self.journal.docs(KIND)? {
            match serde_json::from_str(&body) {
                Ok(doc) => drop(self.hooks.insert(key, Hook { doc, running: false })),
                Err(error) => {
                    self.notice(format!("the hook of task {key} cannot be read: {error}"), "it is not run");
                    self.put_hook(&key, None);
                }
            }
        }
        Ok(())
    }

    /// A live task of an earlier daemon may be the run of a hook.
    pub(crate) fn hook_is_known(&mut self, entry: &Entry) {
        if let Some(HookPart::Run(key)) = &entry.doc.hook
            && let Some(hook) = self.hooks.get_mut(key)
        {
            hook.running = true;
        }
    }

    /// What a task inherits of its parent's part in a hook.
    pub(crate) fn hook_above(&self, parent: Option<&str>) -> Option<HookPart> {
        let parent = parent.and_then(|parent| self.tasks.get(parent))?;
        parent.entry.doc.hook.as_ref().map(|_| HookPart::Below)
    }

    /// Starts what is to be run, as much at once as is allowed. A daemon that leaves, leaves it to the next.
    pub(crate) fn start_hooks(&mut self) {
        if self.hooks.is_empty() || self.phase != Phase::Serving || self.retry.is_some() {
            return;
        }
        let running = self.hooks.values().filter(|hook| hook.running).count();
        let due = self.hooks.iter().filter(|(_, hook)| !hook.running).map(|(key, _)| key.clone());
        let due: Vec<String> = due.take(bounds::HOOKS.saturating_sub(running)).collect();
        for key in due {
            if self.tasks.len() >= self.config.max_tasks {
                return;
            }
            if let Err(error) = self.start_hook(&key) {
                self.notice(
                    format!("the hook of task {key} cannot be started: {error}"),
                    "it is tried again",
                );
                self.retry = Some(self.arm(bounds::COMMIT_RETRY_MS, Timer::Commit));
                return;
            }
        }
    }

    /// The start is recorded with how often that was done; only then it goes to a shim.
    fn start_hook(&mut self, key: &str) -> Result<(), RpcError> {
        let Some(hook) = self.hooks.get(key) else { return Ok(()) };
        let doc = HookDoc { tries: hook.doc.tries + 1, ..hook.doc.clone() };
        let params = self.hook_params(key, &doc);
        let ready = self.make_ready(&params);
        let place = hook_place(&doc);
        let (mut entry, start) = self.compose(&params, ready, place, None)?;
        entry.doc.hook = Some(HookPart::Run(key.to_owned()));
        let id = entry.id.clone();
        let shim = self.take_ready(&mut entry, start.held);
        self.put_hook(key, Some(&doc));
        if let Err(error) = self.record_start(entry, start, None) {
            self.batch.docs.pop();
            self.ready.extend(shim);
            return Err(error);
        }
        self.hooks.insert(key.to_owned(), Hook { doc, running: true });
        match shim {
            Some(shim) => self.begin(&id, shim),
            None => self.waiting.push_back(id),
        }
        Ok(())
    }

    fn hook_params(&self, key: &str, doc: &HookDoc) -> StartParams {
        let there = self.world.is_dir(std::path::Path::new(doc.cwd.as_os_str()));
        let token = match doc.tries {
            1 => format!("{KIND}:{key}"),
            n => format!("{KIND}:{key}:{n}"),
        };
        StartParams {
            command: doc.command.clone(),
            cwd: if there { doc.cwd.clone() } else { Bytes::from("/") },
            env: self.config.hook_env.clone(),
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
            // What the settings give every task is not for the person's own hooks; what a session gives is for its own.
            no_limits: if doc.place.is_none() {
                vec![NoLimit::Timeout, NoLimit::Silence]
            } else {
                Vec::new()
            },
            grace_ms: None,
            output_limit_bytes: None,
            budgets: Budgets::default(),
            notify: None,
            // Somebody who has taken this very name before has no hold on the hook.
            token: Some(token).filter(|token| self.started_before(token).is_ok_and(|known| known.is_none())),
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

/// What whoever started a task wants run belongs where the task belonged, and is bound as it was. What the settings want run is
/// the person's own.
fn hook_place(doc: &HookDoc) -> Place {
    let parent = Some(doc.task.clone());
    let (session, lineage) = doc.place.clone().unwrap_or_else(|| (STANDING.to_owned(), Vec::new()));
    Place { session, parent, lineage }
}

/// What a hook is told. What there is nothing to tell of is left out.
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

/// The kernel takes no variable of any length, and none with a zero byte.
fn cut(text: String) -> String {
    let mut text = text.replace('\0', "");
    let end = text.floor_char_boundary(bounds::HOOK_FACT_BYTES);
    text.truncate(end);
    text
}
