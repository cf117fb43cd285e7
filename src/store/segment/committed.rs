use std::collections::BTreeSet;

use super::SegmentName;

/// The segments that the parts of a run were made of.
#[derive(Debug, Default, Clone)]
pub struct Committed {
    answers: BTreeSet<SegmentName>,
    attempts: BTreeSet<SegmentName>,
}

impl Committed {
    /// Those of the parts of `rollouts` and `calls`, and of `attempts`, which come last.
    pub fn new(
        answers: impl IntoIterator<Item = SegmentName>,
        attempts: impl IntoIterator<Item = SegmentName>,
    ) -> Self {
        Self {
            answers: answers.into_iter().collect(),
            attempts: attempts.into_iter().collect(),
        }
    }

    /// Segments of which something is published and something not: their writer died in between.
    pub fn partial(&self) -> impl Iterator<Item = SegmentName> + '_ {
        self.answers.difference(&self.attempts).copied()
    }

    /// Whether all of a segment is published.
    pub fn is_whole(&self, segment: SegmentName) -> bool {
        self.attempts.contains(&segment)
    }

    /// Whether rows of a segment of `journal` may count already: in part, or because another writer took its writer's
    /// place since. What was there before its writer began, that one knew.
    pub fn is_doubtful(&self, segment: SegmentName, journal: &[SegmentName]) -> bool {
        let mut others = self.answers.iter().chain(&self.attempts).chain(journal);
        let is_partial = self.answers.contains(&segment) && !self.is_whole(segment);
        is_partial || others.any(|other| segment.may_be_superseded_by(other))
    }
}
