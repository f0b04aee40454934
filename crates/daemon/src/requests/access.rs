//! Access rights. Every connection has a scope: a person, a session, or a task. A person sees all
//! of their tasks. A session or a task sees and stops only what is below it, and starts tasks only
//! below itself.
//!
//! A process inside a task always has the scope of that task: the process that connected is
//! examined. A token can only narrow that scope; from outside any task, it selects a session or a
//! task to act for.

use belay_protocol::daemon::{DaemonHelloParams, ScopeInfo};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::vars;

use super::Caller;
use crate::host::Host;
use crate::input::ClientId;
use crate::keyed_hash;
use crate::runtime::Core;
use crate::tasks::{Starter, StoredTask};

/// The scope in which a connection acts: a person, a session, or a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Person,
    Session(String),
    Task(String),
}

impl Scope {
    /// The session or task that everything visible is below. None for a person, who sees
    /// everything.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Self::Person => None,
            Self::Session(id) | Self::Task(id) => Some(id),
        }
    }

    /// Whether a task or session with this id and lineage is within the scope.
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

/// Where the process that opened a connection runs: inside a task or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Outside,
    Inside(String),
    /// Inside a task that is not known, because its shim has just been killed.
    Unknown,
}

/// A token identifies its owner and proves it: the id, a dot, and a secret.
pub(crate) fn make_token(id: &str, secret: &[u8]) -> String {
    format!("{id}.{}", keyed_hash::hex(secret))
}

impl<H: Host> Core<H> {
    /// Finds the innermost task whose shim is among these processes, which are ordered from the
    /// innermost out.
    pub(super) fn origin(&self, ancestors: &[i32], in_task: bool) -> Origin {
        match ancestors.iter().find_map(|pid| self.shims.task_of_pid(*pid)) {
            Some(task) => Origin::Inside(task.to_owned()),
            None if in_task => Origin::Unknown,
            None => Origin::Outside,
        }
    }

    /// The handshake: sets the scope of the connection.
    pub(crate) fn authenticate(
        &mut self,
        client: ClientId,
        hello: &DaemonHelloParams,
    ) -> Result<Scope, RpcError> {
        let origin = self.requests.client(client).map_or(Origin::Unknown, |client| client.origin.clone());
        let scope = self.scope_for(&origin, hello.token.as_deref()).inspect_err(|error| {
            tracing::info!(client = client.0, ?origin, cause = error.message, "client refused");
        })?;
        if let Some(client) = self.requests.client_mut(client) {
            client.said_hello = true;
            client.info = Some(hello.client.clone());
            client.surface = hello.surface;
            client.scope = scope.clone();
        }
        Ok(scope)
    }

    /// The scope of a connection with this origin and this token.
    fn scope_for(&self, origin: &Origin, token: Option<&str>) -> Result<Scope, RpcError> {
        let inside = match (origin, token) {
            (Origin::Outside, None) => return Ok(Scope::Person),
            (Origin::Inside(task), None) => return Ok(Scope::Task(task.clone())),
            (Origin::Unknown, _) => {
                let message = "this process belongs to a task whose shim is gone, and may not use the daemon";
                return Err(RpcError::new(ErrorKind::NotPermitted, message)
                    .hint("the processes of that task are being killed"));
            }
            (Origin::Outside, Some(_)) => None,
            (Origin::Inside(task), Some(_)) => Some(task.as_str()),
        };
        let token = token.unwrap_or_default();
        let (scope, lineage) = self.prove(token).ok_or_else(|| {
            RpcError::new(ErrorKind::NotPermitted, "the token belongs to no known task or session")
                .field("token")
                .hint(format!(
                    "unset {} to act as yourself; inside a task, keep the value that the task was given",
                    vars::TOKEN
                ))
        })?;
        let within = |task: &str| scope.id() == Some(task) || lineage.iter().any(|above| above == task);
        match inside {
            Some(task) if !within(task) => Err(RpcError::new(
                ErrorKind::NotPermitted,
                format!("a process inside task {task} may act only for that task and for what is below it"),
            )
            .field("token")
            .hint(format!("use the {} that the task was given", vars::TOKEN))),
            _ => Ok(scope),
        }
    }

    /// The owner of a token, and the owner's lineage. None if the token is not valid.
    fn prove(&self, token: &str) -> Option<(Scope, Vec<String>)> {
        let (id, _) = token.split_once('.')?;
        let proof = keyed_hash::keyed(&self.ctx.key, token.as_bytes());
        if let Some(session) = self.sessions.get(id) {
            let lineage = session.lineage().to_vec();
            return session.has_proof(&proof).then(|| (Scope::Session(id.to_owned()), lineage));
        }
        // The token of an ended task is not valid any more.
        let stored = self.tasks.get(id)?.stored();
        (stored.doc.proof == proof).then(|| (Scope::Task(id.to_owned()), stored.doc.lineage.clone()))
    }

    pub(crate) fn scope(&self, caller: &Caller) -> Scope {
        let client = self.requests.client(caller.client);
        // A client that has disconnected gets an empty scope, which covers nothing; its replies are
        // dropped.
        client.map_or_else(|| Scope::Session(String::new()), |client| client.scope.clone())
    }

    /// Whether a scope sees a session. A task also sees the session that it is in, whose limits
    /// apply to it.
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
            // A name that was used inside a session does not hide the same name outside of it.
            several if !text.starts_with("se-") && outermost(several).len() == 1 => {
                Ok(outermost(several).remove(0))
            }
            [] => {
                let shown: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
                Err(RpcError::new(ErrorKind::NotFound, format!("there is no session {shown}"))
                    .field("session")
                    .hint("belay sessions lists them; ended ones with -a"))
            }
            several => {
                Err(RpcError::new(ErrorKind::Ambiguous, format!("{} sessions match {text}", several.len()))
                    .field("session")
                    .hint(format!("one of: {}", several.join(", ")))
                    .ids(several.to_vec()))
            }
        }
    }

    /// Refuses an action that only a person may take.
    pub(crate) fn only_a_person(&self, caller: &Caller, action: &str) -> Result<(), RpcError> {
        match self.scope(caller) {
            Scope::Person => Ok(()),
            Scope::Session(id) | Scope::Task(id) => {
                let message = format!("{id} may not {action}: only a person at the command line may");
                Err(RpcError::new(ErrorKind::NotPermitted, message)
                    .hint("ask the user to do it outside of any task"))
            }
        }
    }

    /// Who starts a task or opens a session.
    pub(crate) fn starter(&self, caller: &Caller) -> Starter {
        let client = self.requests.client(caller.client).and_then(|client| client.info.clone());
        Starter { actor: self.actor(caller, None), client }
    }

    /// The actor that events and receipts name: the user, session or task of the caller's scope,
    /// the surface of its client, and the caller's own name: `user:ada via cli (release script)`.
    pub(crate) fn actor(&self, caller: &Caller, named: Option<&str>) -> String {
        let actor = match self.scope(caller) {
            Scope::Person => {
                let uid = self.requests.client(caller.client).map(|client| client.uid);
                uid.map_or_else(
                    || "unknown".to_owned(),
                    |uid| format!("user:{}", self.ctx.host.user_name(uid)),
                )
            }
            Scope::Session(id) => format!("session:{id}"),
            Scope::Task(id) => format!("task:{id}"),
        };
        let surface = self.requests.client(caller.client).map_or("api", |client| client.surface.name());
        match named {
            Some(name) => format!("{actor} via {surface} ({name})"),
            None => format!("{actor} via {surface}"),
        }
    }
}

pub(crate) fn not_permitted(id: &str) -> RpcError {
    RpcError::new(
        ErrorKind::NotPermitted,
        format!("{id} is not yours: a task or session sees and stops only what is below it"),
    )
    .field("id")
    .hint("belay ps lists your tasks")
}
