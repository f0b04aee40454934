//! Who may do what. Every connection acts in somebody's name: a person, a session, or a task. A person sees all of their tasks;
//! a session or a task sees, starts below itself and stops what is below it, and nothing else.
//!
//! A process inside a task acts as that task, whatever it says of itself: the process that connected is examined. A token only
//! ever narrows, or acts for a session or task from outside.

use belay_protocol::daemon::ScopeInfo;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::vars;

use super::Caller;
use crate::host::Host;
use crate::input::ClientId;
use crate::keyed_hash;
use crate::runtime::Core;
use crate::tasks::StoredTask;

/// In whose name a connection acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Person,
    Session(String),
    Task(String),
}

impl Scope {
    /// What something has to be below to be visible. None for a person, who sees everything.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Self::Person => None,
            Self::Session(id) | Self::Task(id) => Some(id),
        }
    }

    /// Whether something with this id and lineage is within it.
    pub(crate) fn covers(&self, id: &str, lineage: &[String]) -> bool {
        self.id().is_none_or(|own| own == id || lineage.iter().any(|above| above == own))
    }

    pub(crate) fn covers_task(&self, task: &StoredTask) -> bool {
        self.covers(&task.id, &task.doc.lineage)
    }

    pub(crate) fn info(&self) -> ScopeInfo {
        match self {
            Self::Person => ScopeInfo::Person,
            Self::Session(id) => ScopeInfo::Session { id: id.clone() },
            Self::Task(id) => ScopeInfo::Task { id: id.clone() },
        }
    }
}

/// Where the process that made a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Outside,
    Inside(String),
    /// It belongs to a task, and which one is not known: the shim of that task has just been killed.
    Unknown,
}

/// A token names its owner and proves it: the id, a dot, and a secret.
pub(crate) fn make_token(id: &str, secret: &[u8]) -> String {
    format!("{id}.{}", keyed_hash::hex(secret))
}

impl<H: Host> Core<H> {
    /// The innermost task that one of these processes is the shim of; innermost first.
    pub(super) fn origin(&self, ancestors: &[i32], in_task: bool) -> Origin {
        match ancestors.iter().find_map(|pid| self.shims.task_of_pid(*pid)) {
            Some(task) => Origin::Inside(task.to_owned()),
            None if in_task => Origin::Unknown,
            None => Origin::Outside,
        }
    }

    /// The handshake: from now on the connection acts in somebody's name.
    pub(crate) fn authenticate(&mut self, client: ClientId, token: Option<&str>) -> Result<Scope, RpcError> {
        let origin = self.requests.client(client).map_or(Origin::Unknown, |client| client.origin.clone());
        let scope = self.scope_for(&origin, token).inspect_err(|error| {
            tracing::info!(client = client.0, ?origin, cause = error.message, "client refused");
        })?;
        if let Some(client) = self.requests.client_mut(client) {
            client.said_hello = true;
            client.scope = scope.clone();
        }
        Ok(scope)
    }

    /// In whose name a connection acts that comes from there and shows this token.
    fn scope_for(&self, origin: &Origin, token: Option<&str>) -> Result<Scope, RpcError> {
        let inside = match (origin, token) {
            (Origin::Outside, None) => return Ok(Scope::Person),
            (Origin::Inside(task), None) => return Ok(Scope::Task(task.clone())),
            (Origin::Unknown, _) => {
                let message = "this process is of a task whose holder is gone: it can speak for nobody";
                return Err(RpcError::new(ErrorKind::NotPermitted, message).hint("it is about to be ended"));
            }
            (Origin::Outside, Some(_)) => None,
            (Origin::Inside(task), Some(_)) => Some(task.as_str()),
        };
        let token = token.unwrap_or_default();
        let (scope, lineage) = self.prove(token).ok_or_else(|| {
            RpcError::new(ErrorKind::NotPermitted, "the token is of no task or session that is known here")
                .field("token")
                .hint(format!(
                    "unset {} to speak as yourself; in a task, leave it as it was given",
                    vars::TOKEN
                ))
        })?;
        let within = |task: &str| scope.id() == Some(task) || lineage.iter().any(|above| above == task);
        match inside {
            Some(task) if !within(task) => Err(RpcError::new(
                ErrorKind::NotPermitted,
                format!(
                    "what runs inside task {task} can speak for it and for what is below it, for nobody else"
                ),
            )
            .field("token")
            .hint(format!("use the {} that the task was given", vars::TOKEN))),
            _ => Ok(scope),
        }
    }

    /// Whose token it is, and what is above its owner.
    fn prove(&self, token: &str) -> Option<(Scope, Vec<String>)> {
        let (id, _) = token.split_once('.')?;
        let proof = keyed_hash::keyed(&self.ctx.key, token.as_bytes());
        if let Some(session) = self.sessions.get(id) {
            let lineage = session.lineage().to_vec();
            return session.has_proof(&proof).then(|| (Scope::Session(id.to_owned()), lineage));
        }
        // The token of an ended task proves nothing any more.
        let stored = self.tasks.get(id)?.stored();
        (stored.doc.proof == proof).then(|| (Scope::Task(id.to_owned()), stored.doc.lineage.clone()))
    }

    pub(crate) fn scope(&self, caller: &Caller) -> Scope {
        let client = self.requests.client(caller.client);
        // A client that has left acts in nobody's name; what it asked for is answered to nobody.
        client.map_or_else(|| Scope::Session(String::new()), |client| client.scope.clone())
    }

    /// Whether a scope sees a session. A task also sees the session that it is in: what binds it is no secret.
    pub(crate) fn sees_session(&self, scope: &Scope, id: &str) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let is_in_it = |task: &String| self.tasks.get(task).is_some_and(|task| task.session() == id);
        scope.covers(id, session.lineage()) || matches!(scope, Scope::Task(task) if is_in_it(task))
    }

    /// The session that a caller means, if it may see it.
    pub(crate) fn find_session(&self, scope: &Scope, text: &str) -> Result<String, RpcError> {
        let mut matches = self.sessions.candidates(text);
        matches.retain(|id| self.sees_session(scope, id));
        let outermost = |ids: &[String]| -> Vec<String> {
            let depth = |id: &String| self.sessions.get(id).map_or(0, |session| session.lineage().len());
            let least = ids.iter().map(depth).min();
            ids.iter().filter(|id| Some(depth(id)) == least).cloned().collect()
        };
        match matches.as_slice() {
            [id] => Ok(id.clone()),
            // A name that was taken inside a session does not hide the same name outside of it.
            several if !text.starts_with("se-") && outermost(several).len() == 1 => {
                Ok(outermost(several).remove(0))
            }
            [] => {
                let shown: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
                Err(RpcError::new(ErrorKind::NotFound, format!("there is no session {shown}"))
                    .field("session")
                    .hint("belay sessions lists them; ended ones with -a"))
            }
            several => Err(RpcError::new(
                ErrorKind::Ambiguous,
                format!("{} sessions are meant by {text}", several.len()),
            )
            .field("session")
            .hint(format!("one of: {}", several.join(", ")))
            .ids(several.to_vec())),
        }
    }

    /// Refuses what only a person may do.
    pub(crate) fn only_a_person(&self, caller: &Caller, what: &str) -> Result<(), RpcError> {
        match self.scope(caller) {
            Scope::Person => Ok(()),
            Scope::Session(id) | Scope::Task(id) => {
                let message = format!("{id} may not {what}: that is for a person at the command line");
                Err(RpcError::new(ErrorKind::NotPermitted, message)
                    .hint("ask whoever runs you to do it, outside of any task"))
            }
        }
    }

    /// Who acts: the user, or the session or task in whose name the caller acts, and what the caller calls itself.
    pub(crate) fn actor(&self, caller: &Caller, named: Option<&str>) -> String {
        let who = match self.scope(caller) {
            Scope::Person => {
                let uid = self.requests.client(caller.client).map(|client| client.uid);
                uid.map_or_else(
                    || "nobody".to_owned(),
                    |uid| format!("user:{}", self.ctx.host.user_name(uid)),
                )
            }
            Scope::Session(id) => format!("session:{id}"),
            Scope::Task(id) => format!("task:{id}"),
        };
        match named {
            Some(name) => format!("{who} ({name})"),
            None => who,
        }
    }
}

pub(crate) fn not_permitted(id: &str) -> RpcError {
    RpcError::new(
        ErrorKind::NotPermitted,
        format!("{id} is not below you: it can neither be seen nor stopped"),
    )
    .field("id")
    .hint("belay ps lists what is yours")
}
