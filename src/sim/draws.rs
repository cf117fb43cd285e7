//! Reproducible randomness: [`Draws`] is a stream of numbers that depends on integers alone, so
//! that a test or a benchmark can compute what the server will do.

/// The increment of SplitMix64: 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
/// Generators", 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hashes bytes to the same number in every version. Not a cryptographic hash.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, word: u64| (hash ^ word).wrapping_mul(GAMMA).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| {
        fold(hash, u64::from_le_bytes(*word))
    });
    mix(rest
        .iter()
        .fold(hash, |hash, byte| fold(hash, u64::from(*byte))))
}

/// A SplitMix64 stream.
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    /// Creates the stream whose state is `seed`.
    pub fn from_state(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the stream that belongs to `parts` under `seed`. The state is folded as
    /// `state = mix(state + GAMMA) ^ part`, then mixed once more; streams of other parts, or of the
    /// same parts in another order or number, are unrelated.
    pub fn keyed(seed: u64, parts: &[u64]) -> Self {
        let fold = |state: u64, part: &u64| mix(state.wrapping_add(GAMMA)) ^ part;
        Self(mix(parts.iter().fold(seed, fold)))
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Draws uniformly from the open interval (0, 1): 53 bits, centred in their cell, so that neither a
    /// logarithm nor a power of it is infinite.
    pub fn unit(&mut self) -> f64 {
        const CELL: f64 = 1.0 / (1_u64 << 53) as f64;
        ((self.next_u64() >> 11) as f64 + 0.5) * CELL
    }

    /// Draws from the standard normal distribution, by Box and Muller; takes two draws.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Draws uniformly from `0..bound`, or returns 0 if `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * bound as u128;
        (wide >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        let mut draws = Draws::from_state(0);
        let first: Vec<u64> = (0..3).map(|_| draws.next_u64()).collect();
        assert_eq!(
            first,
            [
                0xe220_a839_7b1d_cdaf,
                0x6e78_9e6a_a1b9_65f4,
                0x06c4_5d18_8009_454f
            ]
        );
    }

    #[test]
    fn keys_that_differ_in_value_order_or_number_have_other_streams() {
        let first = |seed, parts: &[u64]| Draws::keyed(seed, parts).next_u64();
        let streams = [
            first(0, &[1, 2]),
            first(1, &[1, 2]),
            first(0, &[2, 1]),
            first(0, &[1, 2, 0]),
            first(0, &[1]),
            first(0, &[]),
        ];
        let distinct: std::collections::BTreeSet<u64> = streams.into_iter().collect();
        assert_eq!(distinct.len(), streams.len());
        assert_eq!(first(7, &[1, 2]), first(7, &[1, 2]));
    }

    #[test]
    fn a_digest_differs_with_every_byte_and_the_length() {
        let texts = [
            "",
            "a",
            "b",
            "12345678",
            "12345679",
            "123456781",
            "123456782",
        ];
        let digests: std::collections::BTreeSet<u64> =
            texts.iter().map(|text| digest(text.as_bytes())).collect();
        assert_eq!(digests.len(), texts.len());
        assert_eq!(digest(b"12345678a"), digest("12345678a".as_bytes()));
    }

    #[test]
    fn normal_draws_have_mean_0_and_variance_1() {
        let mut draws = Draws::from_state(1);
        let values: Vec<f64> = (0..100_000).map(|_| draws.normal()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut draws = Draws::from_state(2);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[draws.below(5)] += 1);
        assert!(seen.iter().all(|n| *n > 100), "{seen:?}");
        assert_eq!(draws.below(0), 0);
    }
}
