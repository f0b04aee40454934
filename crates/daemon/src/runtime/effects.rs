//! The order in which effects leave a step of the core. It carries nothing out.

use crate::effect::Effect;
use crate::input::ShimId;

/// When an effect leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// At the end of the step, after its commit was tried, whether or not the journal could be written. Replies are sent so:
    /// a caller is answered also when the disk is full. What must not happen then is `AfterCommit`.
    Unconditional,
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
    unconditional: Vec<Effect>,
    after_commit: Vec<Effect>,
    after_replies: Vec<Effect>,
    deferred: Vec<Effect>,
    /// Durable effects of `AfterReplies`.
    behind_replies: Vec<Effect>,
    /// Durable effects of `Deferred`, which leave when their timer is due.
    delayed: Vec<Effect>,
}

impl Effects {
    pub(crate) fn push(&mut self, stage: Stage, effect: Effect) {
        match stage {
            Stage::Unconditional => self.unconditional.push(effect),
            Stage::AfterCommit => self.after_commit.push(effect),
            Stage::AfterReplies => self.after_replies.push(effect),
            Stage::Deferred => self.deferred.push(effect),
        }
    }

    /// Everything recorded so far is durable. True if a timer is needed to release what is held back.
    #[must_use]
    pub(crate) fn committed(&mut self) -> bool {
        self.unconditional.append(&mut self.after_commit);
        self.behind_replies.append(&mut self.after_replies);
        let needs_timer = !self.deferred.is_empty() && self.delayed.is_empty();
        self.delayed.append(&mut self.deferred);
        needs_timer
    }

    /// When a message to this shim leaves: it must not overtake one that waits for a commit. Otherwise at once, for a full disk
    /// stops no stop.
    pub(crate) fn stage_of_message_to(&self, shim: ShimId) -> Stage {
        let is_to_it = |effect: &Effect| matches!(effect, Effect::ToShim { shim: to, .. } if *to == shim);
        if self.after_commit.iter().any(is_to_it) { Stage::AfterCommit } else { Stage::Unconditional }
    }

    /// Removals need no commit when the disk is full: they are what makes room for it.
    pub(crate) fn release_removals(&mut self) {
        let is_removal = |effect: &mut Effect| matches!(effect, Effect::RemoveDirs { .. });
        self.unconditional.extend(self.after_commit.extract_if(.., is_removal));
    }

    /// The journal will not be written any more: what waits for a commit never leaves.
    pub(crate) fn drop_uncommitted(&mut self) {
        self.after_commit.clear();
        self.after_replies.clear();
        self.deferred.clear();
    }

    /// What was held back leaves with this step.
    pub(crate) fn release_delayed(&mut self) {
        self.unconditional.append(&mut self.delayed);
    }

    pub(crate) const fn delays_nothing(&self) -> bool {
        self.delayed.is_empty()
    }

    /// Everything that leaves now.
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.unconditional)
    }

    /// What comes behind the replies joins what leaves now.
    pub(crate) fn release_behind_replies(&mut self) {
        self.unconditional.append(&mut self.behind_replies);
    }

    /// How many effects leave now, to find out later which of them were pushed since.
    pub(crate) const fn position(&self) -> usize {
        self.unconditional.len()
    }

    /// Effects pushed since `position` wait for the commit.
    pub(crate) fn delay_since(&mut self, position: usize) {
        let later = self.unconditional.split_off(position);
        self.after_commit.extend(later);
    }
}
