//! Who may do what. Every connection speaks in somebody's name: a person, a session, or a task. A person sees all of theirs;
//! a session or a task sees, starts under and stops what is below it, and nothing else.
//!
//! Whoever runs inside a task is taken as that task, whatever it says of itself: the process that connected is looked at. A
//! token only ever narrows, or speaks for a session or task from outside.

use belay_protocol::daemon::ScopeInfo;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::vars;

use crate::answer::Caller;
use crate::core::Core;
use crate::doc::Entry;
use crate::fingerprint;
use crate::sessions::Session;
use crate::world::World;

/// In whose name a connection speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Person,
    Session(String),
    Task(String),
}

impl Scope {
    /// What it has to be below, to be seen by it. Nothing for a person.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Self::Person => None,
            Self::Session(id) | Self::Task(id) => Some(id),
        }
    }

    /// Whether something of this name, below these, is within it.
    pub(crate) fn covers(&self, id: &str, lineage: &[String]) -> bool {
        self.id().is_none_or(|own| own == id || lineage.iter().any(|above| above == own))
    }

    pub(crate) fn covers_task(&self, entry: &Entry) -> bool {
        self.covers(&entry.id, &entry.doc.lineage)
    }

    pub(crate) fn info(&self) -> ScopeInfo {
        match self {
            Self::Person => ScopeInfo::Person,
            Self::Session(id) => ScopeInfo::Session { id: id.clone() },
            Self::Task(id) => ScopeInfo::Task { id: id.clone() },
        }
    }
}

/// Where a process is that made a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Outside,
    Inside(String),
    /// It is of a task, and nobody can say of which: the holder of that task has just been killed.
    Unknown,
}

/// A token says whose it is and proves it: the id, a dot, and a secret.
pub(crate) fn make_token(id: &str, secret: &[u8]) -> String {
    format!("{id}.{}", fingerprint::hex(secret))
}

impl<W: World> Core<W> {
    /// The innermost task that one of these processes holds, from the inside out.
    pub(crate) fn origin(&self, ancestors: &[i32], of_a_task: bool) -> Origin {
        let around = ancestors.iter().find_map(|pid| {
            let holds = |shim: &&crate::core::Shim| shim.process.is_some_and(|process| process.pid == *pid);
            self.shims.values().find(holds).and_then(|shim| shim.task.clone())
        });
        match around {
            Some(task) => Origin::Inside(task),
            None if of_a_task => Origin::Unknown,
            None => Origin::Outside,
        }
    }

    /// In whose name a connection speaks that comes from inside this task, or from outside, and shows this token.
    pub(crate) fn scope_for(&self, origin: &Origin, token: Option<&str>) -> Result<Scope, RpcError> {
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

    /// Whose token it is, and what is above that.
    fn prove(&self, token: &str) -> Option<(Scope, Vec<String>)> {
        let (id, _) = token.split_once('.')?;
        let proof = fingerprint::keyed(&self.key, token.as_bytes());
        if let Some(session) = self.sessions.get(id) {
            let lineage = session.doc.lineage.clone();
            return (session.doc.proof == proof).then(|| (Scope::Session(id.to_owned()), lineage));
        }
        // Of an ended task nobody is left to speak for it.
        let task = self.tasks.get(id)?;
        let lineage = task.entry.doc.lineage.clone();
        (task.entry.doc.proof == proof).then(|| (Scope::Task(id.to_owned()), lineage))
    }

    pub(crate) fn scope(&self, caller: &Caller) -> Scope {
        let client = self.clients.get(&caller.client);
        // One that has left speaks in nobody's name; what it asked for is answered to nobody.
        client.map_or_else(|| Scope::Session(String::new()), |client| client.scope.clone())
    }

    /// The task that somebody means by what they typed, if they may see it.
    pub(crate) fn find(&self, caller: &Caller, text: &str) -> Result<Entry, RpcError> {
        let scope = self.scope(caller);
        let entry = self.entry(&self.resolve(&scope, text)?)?;
        if scope.covers_task(&entry) { Ok(entry) } else { Err(not_permitted(&entry.id)) }
    }

    /// A task sees the session that it is in, too: what binds it is no secret.
    pub(crate) fn sees_session(&self, scope: &Scope, id: &str, session: &Session) -> bool {
        let is_in_it = |task: &String| self.tasks.get(task).is_some_and(|task| task.entry.session == id);
        scope.covers(id, &session.doc.lineage) || matches!(scope, Scope::Task(task) if is_in_it(task))
    }

    /// The session that somebody means, if they may see it.
    pub(crate) fn find_session(&self, scope: &Scope, text: &str) -> Result<String, RpcError> {
        let matches: Vec<&String> = self
            .sessions
            .iter()
            .filter(|(id, session)| {
                let named = session.doc.name.as_deref() == Some(text) && session.doc.state.is_open();
                (*id == text || (text.len() > 3 && id.starts_with(text)) || named)
                    && self.sees_session(scope, id, session)
            })
            .map(|(id, _)| id)
            .collect();
        let outermost = |ids: &[&String]| -> Vec<String> {
            let depth = |id: &String| self.sessions.get(id).map_or(0, |session| session.doc.lineage.len());
            let least = ids.iter().map(|id| depth(id)).min();
            ids.iter().filter(|id| Some(depth(id)) == least).map(|id| (*id).clone()).collect()
        };
        match matches.as_slice() {
            [id] => Ok((*id).clone()),
            // A name that somebody inside has taken is not in the way of whoever is outside.
            several if !text.starts_with("se-") && outermost(several).len() == 1 => {
                Ok(outermost(several)[0].clone())
            }
            [] => {
                let shown: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
                Err(RpcError::new(ErrorKind::NotFound, format!("there is no session {shown}"))
                    .field("session")
                    .hint("belay sessions lists them; ended ones with -a"))
            }
            several => {
                let ids: Vec<String> = several.iter().map(|id| (*id).clone()).collect();
                Err(RpcError::new(
                    ErrorKind::Ambiguous,
                    format!("{} sessions are meant by {text}", ids.len()),
                )
                .field("session")
                .hint(format!("one of: {}", ids.join(", ")))
                .ids(ids))
            }
        }
    }

    /// For what only a person may do.
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

    /// Who asks: the user, or the session or task in whose name it is asked, and what the caller calls itself.
    pub(crate) fn actor(&self, caller: &Caller, named: Option<&str>) -> String {
        let who = match self.scope(caller) {
            Scope::Person => {
                let uid = self.clients.get(&caller.client).map(|client| client.uid);
                uid.map_or_else(|| "nobody".to_owned(), |uid| format!("user:{}", self.world.user_name(uid)))
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
