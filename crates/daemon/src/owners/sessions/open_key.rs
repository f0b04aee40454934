//! `session/open` with a key: two calls with the same key open one session. The call itself is in `handlers`.

use belay_model::LeaseEvent;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::session::{SessionOpenParams, SessionOpenResult};

use super::OpenKey;
use super::handlers::{gone, over};
use crate::host::Host;
use crate::keyed_hash;
use crate::requests::{Answer, Caller, Scope, make_token};
use crate::runtime::Core;

impl<H: Host> Core<H> {
    /// The key of a call, valid among the calls of one scope.
    pub(super) fn open_key(&self, scope: &Scope, params: &SessionOpenParams) -> Option<OpenKey> {
        let key = params.key.as_ref()?;
        let body = serde_json::to_vec(params).unwrap_or_default();
        let key = scope.id().map_or_else(|| key.clone(), |id| format!("{id}/{key}"));
        Some(OpenKey { key, fingerprint: keyed_hash::keyed(&self.ctx.key, &body) })
    }

    /// The token of a session that was opened with a key: it can be made again from the secret of this home.
    pub(super) fn token_of_key(&self, id: &str, with: &OpenKey) -> String {
        let text = format!("session token\0{id}\0{}", with.key);
        let secret = keyed_hash::keyed(&self.ctx.key, text.as_bytes());
        make_token(id, &secret.as_bytes()[..32])
    }

    /// `session/open` with the key of a session that there is.
    pub(super) fn open_again(
        &mut self,
        caller: &Caller,
        id: &str,
        with: &OpenKey,
    ) -> Result<Answer, RpcError> {
        let session = self.sessions.get(id).ok_or_else(|| gone(id))?;
        if session.doc.opened_with.as_ref() != Some(with) {
            let message = format!("the key was used before, with other parameters, for session {id}");
            return Err(RpcError::new(ErrorKind::Conflict, message)
                .field("key")
                .hint("use a new key for a new session, or the same parameters to get the same one")
                .ids(vec![id.to_owned()]));
        }
        if !session.is_open() {
            return Err(over(id, session.reason()).field("key"));
        }
        self.sessions.add_holder(id, caller.client);
        self.lease_event(id, LeaseEvent::Renewed, None);
        let session = self.session_info(id).ok_or_else(|| gone(id))?;
        Ok(caller.answer(&SessionOpenResult { token: self.token_of_key(id, with), session }))
    }
}
