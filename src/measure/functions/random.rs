//! [`SplitMix64`]: random numbers whose stream for a seed never changes.

/// The generator of G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014. It is here, and not that of a library, because a p-value or an interval
/// of a seed must be the same next year.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn with_seed(seed: i64) -> Self {
        Self(seed.cast_unsigned())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, each with the same probability but for `bound / 2^64`: the upper half
    /// of a product with it.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next()) * bound as u128;
        (product >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_reference_implementation() {
        // https://prng.di.unimi.it/splitmix64.c with seed 1234567
        let mut random = SplitMix64::with_seed(1_234_567);
        let stream: Vec<u64> = (0..5).map(|_| random.next()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(stream, expected);
    }

    #[test]
    fn every_number_below_the_bound_is_as_likely() {
        let mut random = SplitMix64::with_seed(1);
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[random.below(7)] += 1);
        // Seven standard deviations of a count.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 650),
            "{counts:?}"
        );
    }
}
