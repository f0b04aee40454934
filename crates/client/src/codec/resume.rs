//! Reconnect and resume: what becomes of pending calls when a connection is lost, and what is sent first on the next one.
//! Every driver reconnects by these three functions, so that there is one such place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_protocol::RpcError;
use belay_protocol::methods::SessionRenew;
use belay_protocol::session::SessionRenewParams;

use super::{Codec, OwnCall};
use crate::error::ClientError;
use crate::message::{Message, RawReply, Response};

impl Codec {
    /// Whether the daemon shuts down and the connection is of no more use: every call that must not be repeated was answered.
    pub(crate) fn is_lost(&self) -> bool {
        self.leaving && !self.calls.values().any(|call| call.written && !call.request.repeatable)
    }

    /// The connection is lost, or there is no new one yet. Returns how long to wait before the next attempt to connect, or the
    /// error if there is none. Calls that are not safe to repeat fail.
    pub(crate) fn disconnected(&mut self, error: ClientError) -> Result<Duration, ClientError> {
        self.leaving = false;
        self.lines.clear();
        self.outgoing.clear();
        self.own.clear();
        self.subscriptions.disconnected();
        let Some(retry) = &mut self.retry else { return Err(error) };
        let delay = retry.after(error)?;
        let unknown: Vec<i64> = self
            .calls
            .iter()
            .filter(|(_, call)| call.written && !call.request.repeatable)
            .map(|(id, _)| *id)
            .collect();
        for id in unknown {
            let Some(call) = self.calls.remove(&id) else { continue };
            self.subscriptions.remove(id);
            let result = Err(ClientError::OutcomeUnknown { method: call.request.method });
            self.ready.push_back(Message::Response(Response { id, result }));
        }
        Ok(delay)
    }

    /// Whether a lost connection would be missed: a call, a subscription or a session depends on it.
    pub(crate) fn needs_connection(&self) -> bool {
        !self.calls.is_empty() || !self.subscriptions.is_empty() || !self.held.is_empty()
    }

    /// There is a new connection, on which only the handshake was made. Puts into the frames what goes on there: sessions are
    /// renewed, then calls are repeated and subscriptions resumed, in the order in which they were made.
    pub(crate) fn connected(&mut self, now: Instant) -> Result<(), ClientError> {
        self.connection += 1;
        self.outgoing.clear();
        for session in self.held.clone() {
            let params = SessionRenewParams { id: session.clone() };
            self.send_own::<SessionRenew>(OwnCall::Renew(session), &params);
        }
        for (id, call) in &mut self.calls {
            let elapsed = now.saturating_duration_since(call.made_at);
            let line = call.request.line_again(elapsed, self.subscriptions.position(*id), call.announced)?;
            call.written = false;
            self.outgoing.push_again(Arc::clone(&call.request), line);
            self.subscriptions.feed(*id, *id);
        }
        for id in self.subscriptions.unfed() {
            self.follow_again(id);
        }
        Ok(())
    }

    /// The reply to a request of the codec itself.
    pub(super) fn own_reply(
        &mut self,
        wire: i64,
        own: OwnCall,
        result: Result<RawReply, RpcError>,
    ) -> Result<(), ClientError> {
        match (own, result) {
            (OwnCall::Ignored, _) | (OwnCall::Renew(_), Ok(_)) => {}
            (OwnCall::Renew(_) | OwnCall::Follow { .. }, Err(error)) if error.is_leaving() => {
                self.leaving = self.resumes();
            }
            // It has ended, or is not to be held by this client any more.
            (OwnCall::Renew(session), Err(_)) => {
                self.held.remove(&session);
            }
            (OwnCall::Follow { id, kind }, Ok(raw)) => self.begin_subscription(id, wire, kind, &raw)?,
            (OwnCall::Follow { id, .. }, Err(error)) => {
                if self.subscriptions.is_fed_by(id, wire) {
                    self.subscription_failed(id, error);
                }
            }
        }
        Ok(())
    }
}
