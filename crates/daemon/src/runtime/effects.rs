//! The order in which effects leave a step of the core. It carries nothing out.

use crate::effect::Effect;
use crate::input::ShimId;

/// When an effect leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// With the step, also when the journal cannot be written: the effect does not depend on it.
    Now,
    /// Once everything that was recorded before it is durable.
    AfterCommit,
    /// Durable, and behind every reply of the step: no caller waits for it.
    AfterReplies,
    /// As `AfterReplies`, and a moment later: the work it causes must not take the processor from the caller that reads
    /// its reply.
    Deferred,
}

#[derive(Debug, Default)]
pub(crate) struct Effects {
    now: Vec<Effect>,
    after_commit: Vec<Effect>,
    after_replies: Vec<Effect>,
    deferred: Vec<Effect>,
    /// Durable; leave at the end of the step.
    last: Vec<Effect>,
    /// Durable; leave when their timer rings.
    held: Vec<Effect>,
}

impl Effects {
    pub(crate) fn push(&mut self, stage: Stage, effect: Effect) {
        match stage {
            Stage::Now => self.now.push(effect),
            Stage::AfterCommit => self.after_commit.push(effect),
            Stage::AfterReplies => self.after_replies.push(effect),
            Stage::Deferred => self.deferred.push(effect),
        }
    }

    /// Everything recorded so far is durable. True if a timer is needed to release what is held back.
    #[must_use]
    pub(crate) fn committed(&mut self) -> bool {
        self.now.append(&mut self.after_commit);
        self.last.append(&mut self.after_replies);
        let needs_timer = !self.deferred.is_empty() && self.held.is_empty();
        self.held.append(&mut self.deferred);
        needs_timer
    }

    /// Whether a message to this shim waits for a commit: what is said to it later must not overtake it.
    pub(crate) fn has_uncommitted_message_to(&self, shim: ShimId) -> bool {
        let is_to_it = |effect: &Effect| matches!(effect, Effect::ToShim { shim: to, .. } if *to == shim);
        self.after_commit.iter().any(is_to_it)
    }

    /// Removals need no commit when the disk is full: they are what makes room for it.
    pub(crate) fn release_removals(&mut self) {
        let is_removal = |effect: &mut Effect| matches!(effect, Effect::RemoveDirs { .. });
        self.now.extend(self.after_commit.extract_if(.., is_removal));
    }

    /// The journal will not be written any more: what waits for a commit never leaves.
    pub(crate) fn drop_uncommitted(&mut self) {
        self.after_commit.clear();
        self.after_replies.clear();
        self.deferred.clear();
    }

    /// What was held back leaves with this step.
    pub(crate) fn release_held(&mut self) {
        self.now.append(&mut self.held);
    }

    pub(crate) const fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// Everything that leaves now.
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.now)
    }

    /// What comes behind the replies joins what leaves now.
    pub(crate) fn release_last(&mut self) {
        self.now.append(&mut self.last);
    }

    /// How many effects leave now, to find out later which of them were pushed since.
    pub(crate) const fn position(&self) -> usize {
        self.now.len()
    }

    /// Effects pushed since `position` wait for the commit.
    pub(crate) fn delay_since(&mut self, position: usize) {
        let later = self.now.split_off(position);
        self.after_commit.extend(later);
    }
}
