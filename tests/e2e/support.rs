//! What the tests share: making worlds, and short words for common calls. It decides nothing.

use belay_protocol::RpcError;
use belay_protocol::task::StopParams;
use belay_testkit::{Builder, World};

pub(crate) const BELAY: &str = env!("CARGO_BIN_EXE_belay");

/// Longer than any test: what sleeps so long ends only because somebody ends it.
pub(crate) const FOREVER: &str = "1000";

pub(crate) fn world() -> World {
    World::new(BELAY)
}

pub(crate) fn builder() -> Builder {
    World::builder(BELAY)
}

/// An ordinary stop that waits for its receipt.
pub(crate) fn stop_of(id: &str) -> StopParams {
    StopParams { id: id.to_owned(), level: None, grace_ms: None, reason: None, actor: None, wait: true }
}

/// The error that the daemon answered.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, belay_client::ClientError>) -> RpcError {
    match result {
        Err(belay_client::ClientError::Rpc(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}
