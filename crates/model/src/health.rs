//! Whether a task gets on: what two looks at it say when they are held against each other. Who looks, and when, is the
//! shim's; what follows from it is in `life`.

/// What a look at a task has found: two sums that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// Everything it has written so far.
    pub output_bytes: u64,
    /// The processor time that its tree has used so far.
    pub cpu_ms: u64,
}

/// What is made of two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Progress,
    /// Nothing moved, and it waits for others whose work is not its own.
    Excused,
    Stalled,
}

/// Processor time below this is none: it is the smallest that the system counts.
pub const LEAST_CPU_MS: u64 = 10;

/// Anything written is progress, and so is more than a hundredth of the time spent on a processor.
pub const fn judge(before: Evidence, now: Evidence, elapsed_ms: u64, is_excused: bool) -> Verdict {
    let cpu_ms = now.cpu_ms.saturating_sub(before.cpu_ms);
    let is_busy = cpu_ms >= LEAST_CPU_MS && cpu_ms.saturating_mul(100) > elapsed_ms;
    if now.output_bytes > before.output_bytes || is_busy {
        Verdict::Progress
    } else if is_excused {
        Verdict::Excused
    } else {
        Verdict::Stalled
    }
}
