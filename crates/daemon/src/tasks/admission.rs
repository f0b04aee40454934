//! Admission of a start: checks its session, its place in the tree and its limits. It changes
//! nothing and evicts no live task.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::session::{OnSessionEnd, SessionDefaults};
use belay_protocol::task::{NoLimit, OnStall, OnTimeout, StallParams, TaskStartParams};

use crate::host::Host;
use crate::owners::{STANDING, Session};
use crate::requests::{Caller, Scope};
use crate::runtime::Core;

/// The session, parent and lineage of a new task.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) session: String,
    pub(crate) parent: Option<String>,
    pub(crate) lineage: Vec<String>,
}

impl<H: Host> Core<H> {
    pub(super) fn check_admission(
        &self,
        caller: &Caller,
        params: &TaskStartParams,
    ) -> Result<Place, RpcError> {
        let scope = self.scope(caller);
        let place = self.place(&scope, params)?;
        if let Some(session) = self.sessions.get(&place.session).filter(|session| !session.is_open()) {
            let why = session.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
            let message = format!("session {} has ended{why}: nothing can be started in it", place.session);
            return Err(RpcError::new(ErrorKind::WrongState, message)
                .field("session")
                .hint("open a new session; the tasks of this one can still be listed, read and stopped"));
        }
        for session in self.sessions_around(&scope) {
            check_within(params, session.on_end(), session.defaults())?;
        }
        if let Some(root) = place.lineage.iter().find(|above| self.tasks.closing.contains_key(*above)) {
            let message = format!("task {root} is being stopped with everything below it");
            return Err(RpcError::new(ErrorKind::WrongState, message)
                .hint("tasks can be started below it again when the stop is complete"));
        }
        self.check_limits(&place)?;
        Ok(place)
    }

    /// The sessions that a scope runs inside and whose policy it cannot change. A session's own
    /// client is not inside it.
    pub(crate) fn sessions_around(&self, scope: &Scope) -> Vec<&Session> {
        let (lineage, own): (&[String], Option<&str>) = match scope {
            Scope::Person => return Vec::new(),
            Scope::Session(id) => (self.sessions.get(id).map_or(&[], Session::lineage), None),
            Scope::Task(id) => match self.tasks.get(id) {
                Some(task) => (&task.stored.doc.lineage, Some(task.session())),
                None => (&[], None),
            },
        };
        let all = lineage.iter().map(String::as_str).chain(own);
        all.filter_map(|id| self.sessions.get(id)).collect()
    }

    fn place(&self, scope: &Scope, params: &TaskStartParams) -> Result<Place, RpcError> {
        let named = params.session.as_ref().map(|text| self.find_session(scope, text)).transpose()?;
        let above = self.above(scope)?;
        let own = match scope {
            Scope::Person => STANDING,
            Scope::Session(id) => id,
            Scope::Task(id) => self.tasks.get(id).map_or(STANDING, |task| task.session()),
        };
        let parent = above.parent.filter(|_| matches!(scope, Scope::Task(_)));
        match named {
            Some(session) if session == STANDING && session != own => {
                Ok(Place { session, parent, lineage: Vec::new() })
            }
            Some(session) if session != own => {
                let lineage = self.above(&Scope::Session(session.clone()))?.lineage;
                Ok(Place { session, parent, lineage })
            }
            _ => Ok(Place { session: own.to_owned(), parent, lineage: above.lineage }),
        }
    }

    /// Foreground, background and queued tasks count alike.
    fn check_limits(&self, place: &Place) -> Result<(), RpcError> {
        let most = self.ctx.config.max_tasks;
        if self.tasks.len() >= most {
            let message = format!("the limit of live tasks is reached (daemon.max_tasks = {most})");
            return Err(RpcError::new(ErrorKind::Limit, message).hint("stop some, or wait for some to end"));
        }
        let sessions = place.lineage.iter().filter(|above| **above != place.session).chain([&place.session]);
        for id in sessions {
            let Some(most) = self.sessions.get(id).and_then(Session::max_tasks) else { continue };
            let live = self.tasks.tally(id).total;
            if live >= most {
                let message = format!("session {id} has {live} live tasks, and its limit is {most}");
                return Err(RpcError::new(ErrorKind::Limit, message)
                    .field("session")
                    .hint(format!("stop some, or wait for some to end: belay ps --session {id}")));
            }
        }
        Ok(())
    }
}

/// A start inside a session must stay within the session's policy.
fn check_within(
    params: &TaskStartParams,
    on_end: OnSessionEnd,
    defaults: &SessionDefaults,
) -> Result<(), RpcError> {
    let refuse = |field: &str, message: String| {
        Err(RpcError::new(ErrorKind::NotPermitted, message)
            .field(field)
            .hint("only the session's own client or a person may request that"))
    };
    if params.keep && on_end == OnSessionEnd::Stop {
        return refuse(
            "keep",
            "the session's tasks end with it, and a task inside the session cannot change that".to_owned(),
        );
    }
    let stops = |stall: Option<StallParams>| stall.is_some_and(|stall| stall.policy == OnStall::Stop);
    if params.stall.is_some() && stops(defaults.stall) && !stops(params.stall) {
        return refuse(
            "stall",
            "the session stops tasks that make no progress, and does not allow less".to_owned(),
        );
    }
    let detaches = params.on_timeout == Some(OnTimeout::Detach);
    if detaches && defaults.timeout_ms.is_some() && defaults.on_timeout != Some(OnTimeout::Detach) {
        return refuse(
            "on_timeout",
            "the session stops tasks at their timeout, and does not allow detach instead".to_owned(),
        );
    }
    for (none, most) in [
        (NoLimit::Timeout, defaults.timeout_ms),
        (NoLimit::Ttl, defaults.ttl_ms),
        (NoLimit::Silence, defaults.silence_ms),
        (NoLimit::Stall, defaults.stall.map(|stall| stall.after_ms)),
    ] {
        if let Some(most) = most.filter(|_| params.no_limits.contains(&none)) {
            return refuse(
                "no_limits",
                format!("the session allows at most {most}, and no limit was requested"),
            );
        }
    }
    for (field, requested, most) in [
        ("timeout_ms", params.timeout_ms, defaults.timeout_ms),
        ("ttl_ms", params.ttl_ms, defaults.ttl_ms),
        ("silence_ms", params.silence_ms, defaults.silence_ms),
        ("stall", params.stall.map(|stall| stall.after_ms), defaults.stall.map(|stall| stall.after_ms)),
        ("grace_ms", params.grace_ms, defaults.grace_ms),
        ("output_limit_bytes", params.output_limit_bytes, defaults.output_limit_bytes),
    ] {
        if let (Some(requested), Some(most)) = (requested, most)
            && requested > most
        {
            return refuse(
                field,
                format!("the session allows at most {most}, and {requested} was requested"),
            );
        }
    }
    Ok(())
}
