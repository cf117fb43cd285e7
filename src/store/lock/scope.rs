use std::fmt;

/// What a writer keeps others from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockScope {
    /// The whole run.
    Run,
    /// The tasks of one shard.
    Shard {
        /// Which, from 1.
        index: u32,
        /// Of how many.
        count: u32,
    },
}

impl LockScope {
    /// Whether two writers could write the same rollout. Shards of different counts always could.
    pub fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Shard { index, count },
                Self::Shard {
                    index: other_index,
                    count: other_count,
                },
            ) => count != other_count || index == other_index,
            _ => true,
        }
    }

    /// Its directory below `lock/`.
    pub(super) fn directory(self) -> String {
        match self {
            Self::Run => "run".to_owned(),
            Self::Shard { index, count } => format!("shard-{index}-of-{count}"),
        }
    }

    pub(super) fn from_directory(name: &str) -> Option<Self> {
        if name == "run" {
            return Some(Self::Run);
        }
        let (index, count) = name.strip_prefix("shard-")?.split_once("-of-")?;
        Some(Self::Shard {
            index: index.parse().ok()?,
            count: count.parse().ok()?,
        })
    }
}

impl fmt::Display for LockScope {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Run => formatter.write_str("the whole run"),
            Self::Shard { index, count } => write!(formatter, "shard {index}/{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_different_shards_of_one_count_do_not_overlap() {
        let shard = |index, count| LockScope::Shard { index, count };
        assert!(!shard(1, 8).overlaps(shard(2, 8)));
        assert!(shard(2, 8).overlaps(shard(2, 8)));
        assert!(shard(1, 8).overlaps(shard(2, 4)));
        assert!(shard(1, 8).overlaps(LockScope::Run));
        assert!(LockScope::Run.overlaps(shard(1, 8)));
        assert!(LockScope::Run.overlaps(LockScope::Run));
    }

    #[test]
    fn a_directory_names_its_scope() {
        for scope in [LockScope::Run, LockScope::Shard { index: 2, count: 8 }] {
            assert_eq!(LockScope::from_directory(&scope.directory()), Some(scope));
        }
        assert_eq!(LockScope::from_directory("shard-x-of-8"), None);
    }
}
