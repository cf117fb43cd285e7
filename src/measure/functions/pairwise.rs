//! [`PairwiseSum`]: the sum of an array whose elements arrive in any order and in any parts.
//!
//! NumPy sums an array by halving it until a part has at most 128 elements, so that rounding errors
//! grow with the logarithm of its length. Which terms are added to which follows from the length
//! alone:
//!
//! ```text
//!                 [0, 1000)
//!            ┌────────┴────────┐
//!        [0, 496)         [496, 1000)
//!       ┌────┴────┐       ┌────┴────┐
//!   [0, 248) [248, 496) ...        ...      down to 128 elements: a leaf
//! ```
//!
//! So a part that is complete is kept as its sum, whatever came first, and memory grows with the
//! logarithm of the length where elements arrive roughly in order.

use std::collections::BTreeMap;
use std::mem::size_of;

/// Longest part that is summed without halving it.
const LEAF: usize = 128;
/// Accumulators within a leaf.
const LANES: usize = 8;

/// The terms of a sum do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairwiseError {
    /// A position that the array does not have.
    #[error(
        "pairwise_sum: position {position} is outside an array of {length}; count positions from 0 within the group"
    )]
    Position {
        /// The position given.
        position: i64,
        /// The length given.
        length: i64,
    },
    /// Two lengths for one array.
    #[error(
        "pairwise_sum: lengths {first} and {second} in one group; give the same length with every term"
    )]
    Length {
        /// The length that came first.
        first: usize,
        /// The length that came later.
        second: i64,
    },
    /// A partial sum whose part does not occur in the array.
    #[error("pairwise_sum: [{start}, +{len}) is no part of an array of {length}")]
    Part {
        /// Its first position.
        start: usize,
        /// Its length.
        len: usize,
        /// The length of the array.
        length: usize,
    },
}

/// A part of the array and what is known of it: an element where `len` is 1, else a sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// First position.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// The element, or the sum of the elements.
    pub sum: f64,
}

/// A sum in the order that is fixed by the array's length. An element that never arrives counts as
/// zero.
#[derive(Debug, Default)]
pub enum PairwiseSum {
    /// Nothing arrived, so that not even the length is known.
    #[default]
    Empty,
    /// An array that is one leaf.
    Short(Box<[f64]>),
    /// A longer one.
    Long(Box<Tree>),
}

/// An array of more than one leaf.
#[derive(Debug)]
pub struct Tree {
    length: usize,
    /// Leaves that miss elements, by start.
    open: BTreeMap<usize, Leaf>,
    /// Complete parts whose sibling is not complete, by start.
    complete: BTreeMap<usize, (usize, f64)>,
    /// The leaf that was found last: the next element is likely to be in it.
    last: (usize, usize),
}

#[derive(Debug)]
struct Leaf {
    elements: Box<[f64]>,
    arrived: usize,
}

impl PairwiseSum {
    /// Puts an element at its place.
    ///
    /// # Errors
    /// The position is outside the array, or the length is not the one of earlier elements.
    pub fn add(&mut self, value: f64, position: i64, length: i64) -> Result<(), PairwiseError> {
        let at = usize::try_from(position).ok().filter(|_| position < length);
        let at = at.ok_or(PairwiseError::Position { position, length })?;
        self.expect_length(length)?;
        self.put(at, value);
        Ok(())
    }

    /// Takes over a part of another partial sum of the same array.
    ///
    /// # Errors
    /// The part does not occur in the array, or the length is not the one of earlier elements.
    pub fn merge(&mut self, part: Part, length: i64) -> Result<(), PairwiseError> {
        self.expect_length(length)?;
        let Part { start, len, sum } = part;
        let length = self.length().unwrap_or_default();
        let unknown = || PairwiseError::Part { start, len, length };
        if start.checked_add(len).is_none_or(|end| end > length) {
            return Err(unknown());
        }
        match self {
            Self::Long(tree) if len > 1 => tree.insert(start, len, sum).ok_or_else(unknown),
            _ if len == 1 => {
                self.put(start, sum);
                Ok(())
            }
            _ => Err(unknown()),
        }
    }

    /// The array's length, once it is known.
    pub fn length(&self) -> Option<usize> {
        match self {
            Self::Empty => None,
            Self::Short(elements) => Some(elements.len()),
            Self::Long(tree) => Some(tree.length),
        }
    }

    /// What is known so far, for another one to [`merge`](Self::merge).
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Empty => Vec::new(),
            Self::Short(elements) => elements_from(0, elements).collect(),
            Self::Long(tree) => {
                let open = tree.open.iter();
                let sums = tree.complete.iter();
                let sums = sums.map(|(&start, &(len, sum))| Part { start, len, sum });
                open.flat_map(|(&start, leaf)| elements_from(start, &leaf.elements))
                    .chain(sums)
                    .collect()
            }
        }
    }

    /// The sum, zero for what never arrived; nothing where nothing did.
    pub fn total(&self) -> Option<f64> {
        match self {
            Self::Empty => None,
            Self::Short(elements) => Some(0.0 + leaf_sum(elements)),
            Self::Long(tree) => Some(0.0 + tree.sum(0, tree.length)),
        }
    }

    /// Bytes on the heap.
    pub fn heap_size(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Short(elements) => size_of::<f64>() * elements.len(),
            Self::Long(tree) => {
                let leaf = size_of::<f64>() * LEAF + size_of::<(usize, Leaf)>();
                let sum = size_of::<(usize, usize, f64)>();
                size_of::<Tree>() + tree.open.len() * leaf + tree.complete.len() * sum
            }
        }
    }

    /// Says how long the array is.
    pub(super) fn expect_length(&mut self, length: i64) -> Result<(), PairwiseError> {
        let given = usize::try_from(length).unwrap_or_default();
        match self.length() {
            Some(first) if first == given => return Ok(()),
            Some(first) => {
                return Err(PairwiseError::Length {
                    first,
                    second: length,
                });
            }
            None => {}
        }
        *self = if given <= LEAF {
            Self::Short(vec![0.0; given].into())
        } else {
            Self::Long(Box::new(Tree {
                length: given,
                open: BTreeMap::new(),
                complete: BTreeMap::new(),
                last: (0, 0),
            }))
        };
        Ok(())
    }

    fn put(&mut self, at: usize, value: f64) {
        match self {
            Self::Empty => {}
            Self::Short(elements) => {
                if let Some(element) = elements.get_mut(at) {
                    *element = value;
                }
            }
            Self::Long(tree) => tree.put(at, value),
        }
    }
}

impl Tree {
    fn put(&mut self, at: usize, value: f64) {
        let (start, len) = self.leaf_of(at);
        let leaf = self.open.entry(start).or_insert_with(|| Leaf {
            elements: vec![0.0; len].into(),
            arrived: 0,
        });
        if let Some(element) = leaf.elements.get_mut(at - start) {
            *element = value;
            leaf.arrived += 1;
        }
        if leaf.arrived == len {
            let sum = leaf_sum(&leaf.elements);
            self.open.remove(&start);
            self.insert(start, len, sum);
        }
    }

    fn leaf_of(&mut self, at: usize) -> (usize, usize) {
        let (start, len) = self.last;
        if at.wrapping_sub(start) >= len {
            self.last = descend(self.length, at, |_, len| len <= LEAF);
        }
        self.last
    }

    /// Keeps the sum of a part, and adds it to its sibling's where that is there, up to the root.
    fn insert(&mut self, start: usize, len: usize, sum: f64) -> Option<()> {
        let mut path = Vec::new();
        let part = descend(self.length, start, |from, size| {
            path.push((from, size));
            (from, size) == (start, len) || size <= LEAF
        });
        if part != (start, len) {
            return None;
        }
        path.pop();
        let (mut start, mut len, mut sum) = (start, len, sum);
        while let Some((from, size)) = path.pop() {
            let sibling = if start == from { from + len } else { from };
            let Some(&(other_len, other)) = self.complete.get(&sibling) else {
                break;
            };
            if other_len + len != size {
                break;
            }
            self.complete.remove(&sibling);
            // Either way round: addition of two terms is commutative in every bit.
            sum += other;
            (start, len) = (from, size);
        }
        self.complete.insert(start, (len, sum));
        Some(())
    }

    fn sum(&self, start: usize, len: usize) -> f64 {
        if let Some(&(complete, sum)) = self.complete.get(&start)
            && complete == len
        {
            return sum;
        }
        if len <= LEAF {
            let leaf = self.open.get(&start);
            return leaf.map_or(0.0, |leaf| leaf_sum(&leaf.elements));
        }
        let half = half_of(len);
        self.sum(start, half) + self.sum(start + half, len - half)
    }
}

fn elements_from(start: usize, elements: &[f64]) -> impl Iterator<Item = Part> {
    let parts = elements.iter().enumerate();
    // A zero is what an element counts as that is not passed on.
    parts
        .filter(|(_, sum)| **sum != 0.0)
        .map(move |(i, &sum)| Part {
            start: start + i,
            len: 1,
            sum,
        })
}

/// Where an array is cut in two: in the middle, at a full row of lanes.
fn half_of(len: usize) -> usize {
    let half = len / 2;
    half - half % LANES
}

/// Goes from the whole array towards the element `at`, to the first part that `is_it`.
fn descend(
    length: usize,
    at: usize,
    mut is_it: impl FnMut(usize, usize) -> bool,
) -> (usize, usize) {
    let (mut start, mut len) = (0, length);
    while !is_it(start, len) {
        let half = half_of(len);
        if at < start + half {
            len = half;
        } else {
            (start, len) = (start + half, len - half);
        }
    }
    (start, len)
}

/// The sum of at most [`LEAF`] elements: eight lanes, combined as a tree, then the rest.
fn leaf_sum(elements: &[f64]) -> f64 {
    let (rows, rest) = elements.as_chunks::<LANES>();
    let Some((first, rows)) = rows.split_first() else {
        return rest.iter().fold(0.0, |sum, element| sum + element);
    };
    let mut lanes = *first;
    for row in rows {
        for (lane, element) in lanes.iter_mut().zip(row) {
            *lane += element;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    rest.iter().fold(sum, |sum, element| sum + element)
}
