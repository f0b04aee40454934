//! Options of an asynchronous client, set before it connects.

use std::path::Path;
use std::sync::Arc;

use belay_protocol::permission::{PermissionAskParams, PermissionAskResult};

use super::AsyncClient;
use super::actor::{self, PermissionHandler};
use crate::error::ClientError;
use crate::paths::Paths;

/// How an [`AsyncClient`] is made.
#[derive(Default)]
pub struct AsyncOptions {
    pub(super) on_permission: Option<PermissionHandler>,
}

impl std::fmt::Debug for AsyncOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncOptions").field("on_permission", &self.on_permission.is_some()).finish()
    }
}

impl AsyncOptions {
    /// A client that declines every request of the daemon.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers the permission requests of agents (`permission/ask`). The handler runs as a task of its own for each request; an
    /// answer that comes after its connection was lost is dropped, and the daemon asks again.
    pub fn on_permission<F, A>(mut self, handler: F) -> Self
    where
        F: Fn(PermissionAskParams) -> A + Send + Sync + 'static,
        A: Future<Output = PermissionAskResult> + Send + 'static,
    {
        self.on_permission = Some(Arc::new(move |ask| Box::pin(handler(ask))));
        self
    }

    /// Connects, and starts the daemon first if there is none. `exe` is the `belay` program.
    pub async fn connect_or_start(self, paths: &Paths, exe: &Path) -> Result<AsyncClient, ClientError> {
        actor::connect(paths, exe, self.on_permission).await
    }
}
