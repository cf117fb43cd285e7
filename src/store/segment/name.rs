use std::fmt;
use std::str::FromStr;

use crate::store::LockScope;

/// Name of a segment, which the parts that it becomes share: `EPOCH-SCOPE-pPARTITION-NUMBER`.
///
/// Names sort by epoch. No two writers of a run have the same epoch, so no two ever write the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Epoch of the writer.
    pub epoch: u64,
    /// Share of the run that the writer's lock is for.
    pub scope: LockScope,
    /// Partition of the writer's plan.
    pub partition: usize,
    /// Number of the segment, unique within its writer.
    pub number: u32,
}

impl SegmentName {
    /// The segment that a part at this path was made of. `None` where the part has another origin, such as an import.
    pub fn of_part(path: &str) -> Option<Self> {
        let (_, file) = path.rsplit_once('/').unwrap_or(("", path));
        file.strip_suffix(".parquet")?.parse().ok()
    }

    /// Whether a writer of `other` could have written rows of this segment again, after it took over: it came later,
    /// and its share of the run overlaps.
    pub fn may_be_superseded_by(&self, other: &Self) -> bool {
        other.epoch > self.epoch && other.scope.overlaps(self.scope)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            epoch,
            scope,
            partition,
            number,
        } = self;
        write!(formatter, "{epoch:010}-")?;
        match scope {
            LockScope::Run => formatter.write_str("run")?,
            LockScope::Shard { index, count } => write!(formatter, "s{index}of{count}")?,
        }
        write!(formatter, "-p{partition:02}-{number:05}")
    }
}

/// The text is not the name of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a segment")]
pub struct NotASegment;

impl FromStr for SegmentName {
    type Err = NotASegment;

    fn from_str(text: &str) -> Result<Self, NotASegment> {
        let parse = || {
            let mut fields = text.split('-');
            let epoch = fields.next()?.parse().ok()?;
            let scope = match fields.next()? {
                "run" => LockScope::Run,
                shard => {
                    let (index, count) = shard.strip_prefix('s')?.split_once("of")?;
                    LockScope::Shard {
                        index: index.parse().ok()?,
                        count: count.parse().ok()?,
                    }
                }
            };
            let partition = fields.next()?.strip_prefix('p')?.parse().ok()?;
            let number = fields.next()?.parse().ok()?;
            let name = Self {
                epoch,
                scope,
                partition,
                number,
            };
            // Only its own spelling: two names of one segment would be two segments.
            (fields.next().is_none() && name.to_string() == text).then_some(name)
        };
        parse().ok_or(NotASegment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let shard = LockScope::Shard { index: 2, count: 8 };
        for (scope, text) in [
            (LockScope::Run, "0000000003-run-p01-00007"),
            (shard, "0000000003-s2of8-p01-00007"),
        ] {
            let name = SegmentName {
                epoch: 3,
                scope,
                partition: 1,
                number: 7,
            };
            assert_eq!(name.to_string(), text);
            assert_eq!(text.parse(), Ok(name));
            let part = format!("rollouts/{text}.parquet");
            assert_eq!(SegmentName::of_part(&part), Some(name));
        }
        for other in ["tasks", "3-run-p01-00007", "0000000003-run-p01-00007-x"] {
            assert_eq!(other.parse::<SegmentName>(), Err(NotASegment), "{other}");
        }
    }

    #[test]
    fn only_a_later_writer_of_the_same_share_supersedes() {
        let name = |text: &str| text.parse::<SegmentName>().unwrap();
        let one = name("0000000003-s1of2-p00-00000");
        for (other, expected) in [
            ("0000000004-run-p00-00000", true),
            ("0000000004-s1of2-p00-00000", true),
            ("0000000004-s2of2-p00-00000", false),
            ("0000000003-s1of2-p01-00001", false),
            ("0000000002-run-p00-00000", false),
        ] {
            assert_eq!(one.may_be_superseded_by(&name(other)), expected, "{other}");
        }
    }
}
