//! Keyed hashes: what an idempotency token compares, and the proof of a scoped token. Their input cannot be guessed from them.

use belay_protocol::task::StartParams;
use sha2::{Digest as _, Sha256};

/// A hash of the parameters that make two starts the same. The inherited environment is not among them: it differs
/// between two shells of one person.
pub(crate) fn of_start(key: &[u8; 32], params: &StartParams) -> String {
    let StartParams {
        command,
        cwd,
        env: _,
        set_env,
        name,
        umask: _,
        rlimits: _,
        stdin,
        stdin_from: _,
        merge,
        pty,
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
        session,
        keep,
        lane,
        answer: _,
        follow: _,
    } = params;
    let parts =
        (command, cwd, set_env, name, (stdin, merge), detached, (timeout_ms, ttl_ms, silence_ms, grace_ms));
    let policy = (on_timeout.unwrap_or_default(), on_disconnect);
    let mut text = serde_json::to_vec(&(parts, output_limit_bytes, session, policy)).unwrap_or_default();
    // Behind the rest, so that starts without them have the hash that earlier daemons noted for them.
    if let Some(size) = pty {
        text.extend(serde_json::to_vec(size).unwrap_or_default());
    }
    if *keep || lane.is_some() {
        text.extend(serde_json::to_vec(&(keep, lane)).unwrap_or_default());
    }
    if *retries > 0 {
        text.extend(serde_json::to_vec(&(retries, retry_delay_ms)).unwrap_or_default());
    }
    if let Some(stall) = stall {
        text.extend(serde_json::to_vec(stall).unwrap_or_default());
    }
    if !budgets.is_empty() {
        text.extend(serde_json::to_vec(budgets).unwrap_or_default());
    }
    if let Some(line) = notify {
        text.extend(serde_json::to_vec(&("notify", line)).unwrap_or_default());
    }
    if !no_limits.is_empty() {
        text.extend(serde_json::to_vec(no_limits).unwrap_or_default());
    }
    keyed(key, &text)
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
