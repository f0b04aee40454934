//! Whether a start may be: in which session, below what, within which limits. Nothing is changed here, and nobody who lives is
//! made to leave.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::session::{Defaults, OnEnd};
use belay_protocol::task::{NoLimit, OnTimeout, StartParams};

use crate::answer::Caller;
use crate::core::Core;
use crate::rights::Scope;
use crate::sessions::{STANDING, SessionDoc, is_in};
use crate::world::World;

/// Where a new task belongs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) session: String,
    pub(crate) parent: Option<String>,
    pub(crate) lineage: Vec<String>,
}

impl<W: World> Core<W> {
    pub(crate) fn admission(&self, caller: &Caller, params: &StartParams) -> Result<Place, RpcError> {
        let scope = self.scope(caller);
        let place = self.place(&scope, params)?;
        let session = self.sessions.get(&place.session).map(|session| &session.doc);
        if let Some(doc) = session.filter(|doc| !doc.state.is_open()) {
            let why = doc.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let message = format!("session {} has ended{why}: nothing can be started in it", place.session);
            return Err(RpcError::new(ErrorKind::WrongState, message)
                .field("session")
                .hint("open a new one; its tasks can still be listed, read and stopped"));
        }
        for doc in self.binding(&scope) {
            bound(params, doc.on_end, &doc.defaults)?;
        }
        if let Some(root) = self.closing.iter().find(|root| place.lineage.contains(root)) {
            let message = format!("task {root} is being stopped with everything below it");
            return Err(RpcError::new(ErrorKind::WrongState, message).hint("nothing new begins there"));
        }
        self.check_limits(&place)?;
        Ok(place)
    }

    /// The sessions whose policy somebody cannot change: all that they run inside of. A session's own client is not inside it.
    pub(crate) fn binding(&self, scope: &Scope) -> Vec<&SessionDoc> {
        let (lineage, own) = match scope {
            Scope::Person => return Vec::new(),
            Scope::Session(id) => (self.sessions.get(id).map(|session| &session.doc.lineage), None),
            Scope::Task(id) => {
                let entry = self.tasks.get(id).map(|task| &task.entry);
                (entry.map(|entry| &entry.doc.lineage), entry.map(|entry| &entry.session))
            }
        };
        let all = lineage.into_iter().flatten().chain(own);
        all.filter_map(|id| self.sessions.get(id)).map(|session| &session.doc).collect()
    }

    fn place(&self, scope: &Scope, params: &StartParams) -> Result<Place, RpcError> {
        let named = params.session.as_ref().map(|text| self.find_session(scope, text)).transpose()?;
        let (parent, lineage) = self.above(scope)?;
        let own = match scope {
            Scope::Person => STANDING,
            Scope::Session(id) => id,
            Scope::Task(id) => self.tasks.get(id).map_or(STANDING, |task| task.entry.session.as_str()),
        };
        let parent = parent.filter(|_| matches!(scope, Scope::Task(_)));
        match named {
            Some(session) if session != own => {
                let (_, lineage) = self.above(&Scope::Session(session.clone()))?;
                let lineage = if session == STANDING { Vec::new() } else { lineage };
                Ok(Place { session, parent, lineage })
            }
            _ => Ok(Place { session: own.to_owned(), parent, lineage }),
        }
    }

    /// Foreground and background count alike, and so does what waits.
    fn check_limits(&self, place: &Place) -> Result<(), RpcError> {
        let most = self.config.max_tasks;
        if self.tasks.len() >= most {
            let message = format!("as many tasks are live as daemon.max_tasks allows: {most}");
            return Err(RpcError::new(ErrorKind::Limit, message).hint("stop some, or wait for some to end"));
        }
        let sessions = place.lineage.iter().filter(|above| **above != place.session).chain([&place.session]);
        for id in sessions {
            let Some(most) = self.sessions.get(id).and_then(|session| session.doc.max_tasks) else {
                continue;
            };
            let live = self.tasks.values().filter(|task| is_in(id, &task.entry)).count() as u64;
            if live >= most {
                let message = format!("{live} tasks of session {id} are live, and it may have {most}");
                return Err(RpcError::new(ErrorKind::Limit, message)
                    .field("session")
                    .hint(format!("stop some, or wait for some to end: belay ps --session {id}")));
            }
        }
        Ok(())
    }
}

/// Whoever runs inside a session may ask for less than its policy gives, and not for more.
fn bound(params: &StartParams, on_end: OnEnd, defaults: &Defaults) -> Result<(), RpcError> {
    let refuse = |field: &str, message: String| {
        Err(RpcError::new(ErrorKind::NotPermitted, message)
            .field(field)
            .hint("only the session's own client, or a person, can ask for that"))
    };
    if params.keep && on_end == OnEnd::Stop {
        return refuse(
            "keep",
            "the session's tasks end with it; what runs inside it cannot change that".to_owned(),
        );
    }
    let detaches = params.on_timeout == Some(OnTimeout::Detach);
    if detaches && defaults.timeout_ms.is_some() && defaults.on_timeout != Some(OnTimeout::Detach) {
        return refuse("on_timeout", "the session stops what has run so long".to_owned());
    }
    for (none, most) in [
        (NoLimit::Timeout, defaults.timeout_ms),
        (NoLimit::Ttl, defaults.ttl_ms),
        (NoLimit::Silence, defaults.silence_ms),
    ] {
        if let Some(most) = most.filter(|_| params.no_limits.contains(&none)) {
            return refuse("no_limits", format!("the session allows {most}, and no limit was asked for"));
        }
    }
    for (field, asked, most) in [
        ("timeout_ms", params.timeout_ms, defaults.timeout_ms),
        ("ttl_ms", params.ttl_ms, defaults.ttl_ms),
        ("silence_ms", params.silence_ms, defaults.silence_ms),
        ("grace_ms", params.grace_ms, defaults.grace_ms),
        ("output_limit_bytes", params.output_limit_bytes, defaults.output_limit_bytes),
    ] {
        if let (Some(asked), Some(most)) = (asked, most)
            && asked > most
        {
            return refuse(field, format!("the session allows {most}, and {asked} was asked for"));
        }
    }
    Ok(())
}
