//! Defaults for the limits of a task: layers of defaults in, the limits of one task out. No I/O.

use belay_model::Policy;
use belay_protocol::RpcError;
use belay_protocol::task::{Budgets, NoLimit, OnTimeout, StallParams, TaskStartParams};

/// One layer of defaults. A field that it leaves out comes from the next layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub timeout_ms: Option<u64>,
    pub on_timeout: Option<OnTimeout>,
    pub ttl_ms: Option<u64>,
    pub silence_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub output_limit_bytes: Option<u64>,
    pub stall: Option<StallParams>,
}

impl Defaults {
    /// How much of a task's output is kept unless a start or a setting says otherwise.
    pub const OUTPUT_LIMIT_BYTES: u64 = 256 * 1024 * 1024;
}

impl From<belay_protocol::session::SessionDefaults> for Defaults {
    fn from(session: belay_protocol::session::SessionDefaults) -> Self {
        let belay_protocol::session::SessionDefaults {
            timeout_ms,
            on_timeout,
            ttl_ms,
            silence_ms,
            grace_ms,
            output_limit_bytes,
            stall,
        } = session;
        Self { timeout_ms, on_timeout, ttl_ms, silence_ms, grace_ms, output_limit_bytes, stall }
    }
}

/// The limits of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) silence_ms: Option<u64>,
    pub(crate) grace_ms: u64,
    pub(crate) output_limit_bytes: u64,
    pub(crate) stall: Option<StallParams>,
}

/// Each limit is the start's own value, else that of the first layer that has one, else the
/// built-in value.
pub(crate) fn resolve(params: &TaskStartParams, layers: &[&Defaults]) -> Limits {
    fn pick<T: Copy>(own: Option<T>, layers: &[&Defaults], field: fn(&Defaults) -> Option<T>) -> Option<T> {
        own.or_else(|| layers.iter().find_map(|layer| field(layer)))
    }
    let clock = |own, none, field| pick(own, layers, field).filter(|_| !params.no_limits.contains(&none));
    Limits {
        timeout_ms: clock(params.timeout_ms, NoLimit::Timeout, |layer| layer.timeout_ms),
        on_timeout: pick(params.on_timeout, layers, |layer| layer.on_timeout).unwrap_or_default(),
        ttl_ms: clock(params.ttl_ms, NoLimit::Ttl, |layer| layer.ttl_ms),
        silence_ms: clock(params.silence_ms, NoLimit::Silence, |layer| layer.silence_ms),
        grace_ms: pick(params.grace_ms, layers, |layer| layer.grace_ms).unwrap_or(Policy::DEFAULT_GRACE_MS),
        output_limit_bytes: pick(params.output_limit_bytes, layers, |layer| layer.output_limit_bytes)
            .unwrap_or(Defaults::OUTPUT_LIMIT_BYTES),
        stall: pick(params.stall, layers, |layer| layer.stall)
            .filter(|_| !params.no_limits.contains(&NoLimit::Stall)),
    }
}

/// The smallest memory budget: every process needs more than this.
const SMALLEST_MEMORY_BYTES: u64 = 1024 * 1024;

/// Checks the budgets of a start, and the limits that it switches off.
pub(crate) fn check(params: &TaskStartParams) -> Result<(), RpcError> {
    let Budgets { output_bytes, memory_bytes, processes } = params.budgets;
    let counts = [("output_bytes", output_bytes), ("processes", processes)];
    if let Some((name, _)) = counts.iter().find(|(_, budget)| *budget == Some(0)) {
        let message = format!("a budget of 0 {name} would end the task at once");
        return Err(RpcError::invalid("budgets", message).hint("leave it out for no limit"));
    }
    if memory_bytes.is_some_and(|bytes| bytes < SMALLEST_MEMORY_BYTES) {
        let message = format!("the memory budget must be at least {SMALLEST_MEMORY_BYTES} bytes");
        return Err(
            RpcError::invalid("budgets", message).hint("memory_bytes is in bytes; leave it out for no limit")
        );
    }
    check_no_limits(params)
}

/// A limit is either set or switched off, not both.
fn check_no_limits(params: &TaskStartParams) -> Result<(), RpcError> {
    let clocks = [
        (NoLimit::Timeout, params.timeout_ms, "timeout_ms"),
        (NoLimit::Ttl, params.ttl_ms, "ttl_ms"),
        (NoLimit::Silence, params.silence_ms, "silence_ms"),
        (NoLimit::Stall, params.stall.map(|stall| stall.after_ms), "stall"),
    ];
    let conflict = clocks.iter().find(|(none, own, _)| own.is_some() && params.no_limits.contains(none));
    conflict.map_or(Ok(()), |(_, _, field)| {
        let message = format!("{field} is set, and no_limits switches the same limit off");
        Err(RpcError::invalid("no_limits", message).hint("leave out one of the two"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(json: &str) -> TaskStartParams {
        serde_json::from_str(&format!(r#"{{"spec": {{"kind": "shell", "command": {{"kind": "argv", "argv": ["true"]}}}}, "cwd": "/", {json}}}"#)).unwrap()
    }

    #[test]
    fn nearest_layer_with_value_decides() {
        let near = Defaults { timeout_ms: Some(1), ..Defaults::default() };
        let far = Defaults {
            timeout_ms: Some(2),
            ttl_ms: Some(3),
            on_timeout: Some(OnTimeout::Detach),
            ..Defaults::default()
        };
        let limits = resolve(&start(r#""silence_ms": 4, "grace_ms": 0"#), &[&near, &far]);
        assert_eq!(
            limits,
            Limits {
                timeout_ms: Some(1),
                on_timeout: OnTimeout::Detach,
                ttl_ms: Some(3),
                silence_ms: Some(4),
                grace_ms: 0,
                output_limit_bytes: Defaults::OUTPUT_LIMIT_BYTES,
                stall: None,
            }
        );
    }

    #[test]
    fn no_limits_overrides_layers() {
        let layer =
            Defaults { timeout_ms: Some(1), ttl_ms: Some(2), silence_ms: Some(3), ..Defaults::default() };
        let limits = resolve(&start(r#""no_limits": ["timeout", "silence"]"#), &[&layer]);
        assert_eq!((limits.timeout_ms, limits.ttl_ms, limits.silence_ms), (None, Some(2), None));
    }
}
