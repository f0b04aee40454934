//! A lane: a named seat that at most one task holds. Who gets it, who waits, who may not have it any more. Pure: starting and
//! stopping tasks is done by whoever asks.

/// What a claim does when the lane is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Reject,
    Queue,
    Replace,
}

/// A task that wants the seat, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub task: String,
    /// A session, the outermost task of an agent, or the person.
    pub owner: String,
    pub since_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    pub claim: Claim,
    /// The task has ended and some of it has not: nobody else may sit down beside that.
    pub blocked: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    pub claim: Claim,
    /// The holder is being stopped for it.
    pub replaces: bool,
}

/// An owner that may not have the lane: somebody else has stopped what it had there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    pub owner: String,
    pub generation: u64,
    pub task: String,
    pub by: String,
    pub at_ms: i64,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Of the last holding; every later one has a higher number.
    pub generation: u64,
    pub holder: Option<Holding>,
    pub queue: Vec<Waiting>,
    pub fences: Vec<Fence>,
}

/// What became of a claim that was not refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Seat {
    /// The lane was free. It holds it once [`Lane::grant`] has been called.
    Free,
    Waits {
        /// The holder, to be stopped for it.
        stop: Option<String>,
        /// One that waited to replace the holder, and is itself replaced: it never starts.
        gives_way: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    Held(Holding),
    /// Others wait for it, and the claim does not want to.
    Awaited(Claim),
    Fenced(Fence),
    /// Somebody else has held it since this generation.
    Stale {
        claimed: u64,
    },
}

impl Lane {
    /// Whether nothing would be lost by forgetting it.
    pub const fn is_idle(&self) -> bool {
        self.holder.is_none() && self.queue.is_empty() && self.fences.is_empty()
    }

    /// The fence that stands before any of these: an owner and everybody above it.
    pub fn fence_before(&self, names: &[&str]) -> Option<&Fence> {
        self.fences.iter().find(|fence| names.contains(&fence.owner.as_str()))
    }

    /// Whether the claim would be let in; nothing changes yet.
    pub fn check(&self, names: &[&str], mode: Mode, generation: Option<u64>) -> Result<(), Refusal> {
        if let Some(fence) = self.fence_before(names) {
            return Err(Refusal::Fenced(fence.clone()));
        }
        // No holding has the number 0: of a lane that nobody remembers, nobody can say that it was not held since.
        if let Some(claimed) = generation.filter(|claimed| *claimed != self.generation || *claimed == 0) {
            return Err(Refusal::Stale { claimed });
        }
        match (mode, &self.holder, self.queue.first()) {
            (Mode::Reject, Some(holding), _) => Err(Refusal::Held(holding.clone())),
            (Mode::Reject, None, Some(next)) => Err(Refusal::Awaited(next.claim.clone())),
            (Mode::Reject, None, None) | (Mode::Queue | Mode::Replace, _, _) => Ok(()),
        }
    }

    /// Lets a checked claim in: it sits down, or waits. Ordinary ones wait in order; one that replaces goes before them.
    pub fn enter(&mut self, claim: Claim, mode: Mode) -> Seat {
        let replaces = mode == Mode::Replace;
        if self.holder.is_none() && self.queue.is_empty() {
            self.queue.push(Waiting { claim, replaces });
            return Seat::Free;
        }
        if !replaces {
            self.queue.push(Waiting { claim, replaces });
            return Seat::Waits { stop: None, gives_way: None };
        }
        let gives_way =
            self.queue.iter().position(|waiting| waiting.replaces).map(|at| self.queue.remove(at));
        self.queue.insert(0, Waiting { claim, replaces });
        // What is left of one that has ended cannot be stopped again: it stays blocked until somebody releases it.
        let stop = self.holder.as_ref().filter(|holding| holding.blocked.is_none());
        Seat::Waits {
            stop: stop.map(|holding| holding.claim.task.clone()),
            gives_way: gives_way.map(|waiting| waiting.claim.task),
        }
    }

    /// Gives the free seat to the next in line. The generation must be higher than every one before.
    pub fn grant(&mut self, generation: u64) -> Option<String> {
        if self.holder.is_some() || self.queue.is_empty() {
            return None;
        }
        let Waiting { claim, .. } = self.queue.remove(0);
        let task = claim.task.clone();
        self.holder = Some(Holding { claim, blocked: None });
        self.generation = generation;
        Some(task)
    }

    /// The task has ended. If some of it has not, the seat stays taken, and why is said.
    pub fn leave(&mut self, task: &str, blocked: Option<String>) {
        self.queue.retain(|waiting| waiting.claim.task != task);
        let Some(holding) = self.holder.as_mut().filter(|holding| holding.claim.task == task) else { return };
        match blocked {
            Some(why) => holding.blocked = Some(why),
            None => self.holder = None,
        }
    }

    /// Fences an owner. Whoever waited in its name waits in vain: those tasks are returned, and have to be ended.
    pub fn fence(&mut self, fence: Fence) -> Vec<String> {
        let owner = fence.owner.clone();
        self.fences.retain(|old| old.owner != owner);
        self.fences.push(fence);
        let (gone, stay) = std::mem::take(&mut self.queue).into_iter().partition(|w| w.claim.owner == owner);
        self.queue = stay;
        Vec::into_iter(gone).map(|waiting| waiting.claim.task).collect()
    }

    /// Takes fences away, all of them or one owner's, and lets go of a seat that only the rest of an ended task holds.
    pub fn release(&mut self, owner: Option<&str>) -> (Vec<Fence>, Option<String>) {
        let is_meant = |fence: &Fence| owner.is_none_or(|owner| fence.owner == owner);
        let (released, stay) = std::mem::take(&mut self.fences).into_iter().partition(is_meant);
        self.fences = stay;
        let is_meant = |holding: &Holding| owner.is_none_or(|owner| holding.claim.owner == owner);
        let blocked = self.holder.take_if(|holding| holding.blocked.is_some() && is_meant(holding));
        (released, blocked.map(|holding| holding.claim.task))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Happens {
        Claim {
            owner: u8,
            mode: Mode,
        },
        /// The task with this place among the living ends, with something left of it or not.
        End {
            which: prop::sample::Index,
            blocked: bool,
        },
        Fence,
        Release,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let mode = prop_oneof![Just(Mode::Reject), Just(Mode::Queue), Just(Mode::Replace)];
        prop_oneof![
            5 => (0..4u8, mode).prop_map(|(owner, mode)| Happens::Claim { owner, mode }),
            5 => (any::<prop::sample::Index>(), prop::bool::weighted(0.1))
                .prop_map(|(which, blocked)| Happens::End { which, blocked }),
            1 => Just(Happens::Fence),
            1 => Just(Happens::Release),
        ]
    }

    /// The lane and what really is: tasks that were let in and have not ended.
    #[derive(Default)]
    struct World {
        lane: Lane,
        living: Vec<String>,
        started: Vec<String>,
        next: u64,
    }

    impl World {
        fn end(&mut self, task: &str, blocked: bool) {
            self.living.retain(|other| other != task);
            self.lane.leave(task, blocked.then(|| "somebody is left".to_owned()));
            self.grant();
        }

        fn grant(&mut self) {
            self.next += 1;
            let before = self.lane.generation;
            if let Some(task) = self.lane.grant(self.next) {
                assert!(self.lane.generation > before);
                self.started.push(task);
            }
        }

        fn claim(&mut self, owner: u8, mode: Mode) {
            self.next += 1;
            let (task, owner) = (format!("t{}", self.next), format!("o{owner}"));
            if self.lane.check(&[&owner], mode, None).is_err() {
                return;
            }
            let claim = Claim { task: task.clone(), owner, since_ms: 0 };
            self.living.push(task);
            if let Seat::Waits { gives_way: Some(task), .. } = self.lane.enter(claim, mode) {
                self.end(&task, false);
            }
            self.grant();
        }

        fn step(&mut self, happens: Happens) {
            match happens {
                Happens::Claim { owner, mode } => self.claim(owner, mode),
                Happens::End { which, blocked } if !self.living.is_empty() => {
                    let task = which.get(&self.living).clone();
                    self.end(&task, blocked);
                }
                Happens::End { .. } => {}
                Happens::Fence => {
                    let Some(holding) = self.lane.holder.clone() else { return };
                    let Claim { task, owner, .. } = holding.claim;
                    let fence =
                        Fence { owner, generation: 0, task, by: "p".to_owned(), at_ms: 0, reason: None };
                    for task in self.lane.fence(fence) {
                        self.end(&task, false);
                    }
                }
                Happens::Release => {
                    self.lane.release(None);
                    self.grant();
                }
            }
        }

        fn check(&self) {
            let holder = self.lane.holder.as_ref().map(|holding| holding.claim.task.clone());
            let waiting: Vec<String> = self.lane.queue.iter().map(|w| w.claim.task.clone()).collect();
            let known: BTreeSet<&String> = holder.iter().chain(&waiting).collect();
            for task in &self.living {
                assert!(known.contains(task), "{task} is forgotten: {:?}", self.lane);
            }
            // Of those that were started, only the holder may be alive.
            let alive: Vec<&String> = self.started.iter().filter(|task| self.living.contains(task)).collect();
            assert!(alive.len() <= 1, "two at once: {alive:?}");
            assert!(alive.iter().all(|task| Some(*task) == holder.as_ref()), "{alive:?} {:?}", self.lane);
            assert!(
                holder.is_some() || waiting.is_empty(),
                "a free seat and somebody waits: {:?}",
                self.lane
            );
            let fenced =
                self.lane.fences.iter().any(|f| self.lane.queue.iter().any(|w| w.claim.owner == f.owner));
            assert!(!fenced, "a fenced owner waits: {:?}", self.lane);
        }
    }

    proptest! {
        // proves L4, L5
        #[test]
        fn never_two_holders_nobody_forgotten_no_fenced_owner_waits(steps in prop::collection::vec(happens(), 0..60)) {
            let mut world = World::default();
            for step in steps {
                world.step(step);
                world.check();
            }
        }

        // proves L4
        #[test]
        fn those_who_wait_start_in_the_order_in_which_they_came(count in 1..20usize) {
            let mut world = World::default();
            for _ in 0..count {
                world.claim(0, Mode::Queue);
            }
            let order = world.living.clone();
            for task in &order {
                world.end(task, false);
            }
            prop_assert_eq!(world.started, order);
        }
    }

    #[test]
    fn a_generation_that_somebody_has_followed_is_stale() {
        let mut lane = Lane::default();
        let claim = |task: &str| Claim { task: task.to_owned(), owner: "o".to_owned(), since_ms: 0 };
        assert_eq!(lane.check(&["o"], Mode::Reject, Some(0)), Err(Refusal::Stale { claimed: 0 }));
        assert_eq!(lane.enter(claim("a"), Mode::Reject), Seat::Free);
        lane.grant(7);
        lane.leave("a", None);
        assert_eq!(lane.check(&["o"], Mode::Reject, Some(7)), Ok(()));
        lane.enter(claim("b"), Mode::Reject);
        lane.grant(9);
        lane.leave("b", None);
        assert_eq!(lane.check(&["o"], Mode::Reject, Some(7)), Err(Refusal::Stale { claimed: 7 }));
    }

    #[test]
    fn what_is_left_of_a_holder_blocks_the_lane_until_it_is_released() {
        let mut world = World::default();
        world.claim(0, Mode::Queue);
        world.claim(1, Mode::Queue);
        let (first, second) = (world.living[0].clone(), world.living[1].clone());
        world.end(&first, true);
        assert_eq!(world.started, [first.as_str()]);
        assert_eq!(world.lane.release(None), (Vec::new(), Some(first.clone())));
        world.grant();
        assert_eq!(world.started, [first, second]);
    }
}
