//! Keyed hashes: what an idempotency token compares, and the proof of a scoped token. Their input cannot be guessed from them.

use belay_protocol::task::TaskStartParams;
use sha2::{Digest as _, Sha256};

/// A hash of the parameters that make two starts the same. The inherited environment is not among them: it differs
/// between two shells of one person.
pub(crate) fn of_start(key: &[u8; 32], params: &TaskStartParams) -> String {
    let TaskStartParams {
        spec,
        cwd,
        env: _,
        inherit_env: _,
        set_env,
        name,
        labels,
        umask: _,
        rlimits: _,
        detached,
        timeout_ms,
        on_timeout,
        on_disconnect,
        ttl_ms,
        silence_ms,
        stall,
        no_limits,
        grace_ms,
        retries,
        retry_delay_ms,
        output_limit_bytes,
        budgets,
        notify,
        token: _,
        resume: _,
        session,
        keep,
        lane,
        answer: _,
        follow: _,
    } = params;
    let mut spec = spec.clone();
    if let Some(shell) = spec.shell_mut() {
        // The caller makes a new socket for each attempt.
        shell.stdin_from = None;
    }
    let what = (spec, cwd, set_env, name, labels, detached, session, keep, lane, notify);
    let clocks = (timeout_ms, on_timeout.unwrap_or_default(), ttl_ms, silence_ms, grace_ms, stall, no_limits);
    let rest = (on_disconnect, retries, retry_delay_ms, output_limit_bytes, budgets);
    keyed(key, &serde_json::to_vec(&(what, clocks, rest)).unwrap_or_default())
}

pub(crate) fn keyed(key: &[u8; 32], text: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(text);
    hex(&hash.finalize())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
