//! The life of a session: a lease that is held, lost, regained or over, and a policy that is applied once. Pure; when a lease is
//! due is known by whoever has a clock.

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lease {
    Held,
    /// Lost, and to be regained until the grace is over.
    Lapsed,
    /// Over. Its policy is being applied.
    Ending,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseEvent {
    Renewed,
    /// Not renewed in time, or its last connection has ended.
    Lost,
    GraceOver,
    Closed,
    /// Whatever its policy had to end has ended.
    Emptied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseEffect {
    ArmLease,
    ArmGrace,
    /// Stop or keep its tasks: once.
    ApplyPolicy,
    Finish,
}

/// One step. Nothing brings a session back that is over.
pub const fn lease(now: Lease, event: LeaseEvent) -> (Lease, Option<LeaseEffect>) {
    match (now, event) {
        (Lease::Held | Lease::Lapsed, LeaseEvent::Renewed) => (Lease::Held, Some(LeaseEffect::ArmLease)),
        (Lease::Held, LeaseEvent::Lost) => (Lease::Lapsed, Some(LeaseEffect::ArmGrace)),
        (Lease::Lapsed, LeaseEvent::GraceOver) | (Lease::Held | Lease::Lapsed, LeaseEvent::Closed) => {
            (Lease::Ending, Some(LeaseEffect::ApplyPolicy))
        }
        (Lease::Ending, LeaseEvent::Emptied) => (Lease::Ended, Some(LeaseEffect::Finish)),
        (Lease::Held, LeaseEvent::GraceOver | LeaseEvent::Emptied)
        | (Lease::Lapsed, LeaseEvent::Lost | LeaseEvent::Emptied)
        | (
            Lease::Ending,
            LeaseEvent::Renewed | LeaseEvent::Lost | LeaseEvent::GraceOver | LeaseEvent::Closed,
        )
        | (
            Lease::Ended,
            LeaseEvent::Renewed
            | LeaseEvent::Lost
            | LeaseEvent::GraceOver
            | LeaseEvent::Closed
            | LeaseEvent::Emptied,
        ) => (now, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> impl Strategy<Value = LeaseEvent> {
        prop_oneof![
            Just(LeaseEvent::Renewed),
            Just(LeaseEvent::Lost),
            Just(LeaseEvent::GraceOver),
            Just(LeaseEvent::Closed),
            Just(LeaseEvent::Emptied),
        ]
    }

    proptest! {
        // proves L1
        #[test]
        fn the_policy_is_applied_at_most_once_and_never_while_the_lease_can_be_regained(
            events in prop::collection::vec(event(), 0..40),
        ) {
            let (mut now, mut applied) = (Lease::Held, 0);
            for event in events {
                let before = now;
                let (next, effect) = lease(now, event);
                now = next;
                if effect == Some(LeaseEffect::ApplyPolicy) {
                    applied += 1;
                    let lost_for_good = before == Lease::Lapsed && event == LeaseEvent::GraceOver;
                    prop_assert!(lost_for_good || event == LeaseEvent::Closed);
                }
                prop_assert_eq!(applied > 0, matches!(now, Lease::Ending | Lease::Ended));
            }
            prop_assert!(applied <= 1);
        }
    }
}
