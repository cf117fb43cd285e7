//! Text that says nothing: [`append_filler`] makes an answer as large as it should be, out of one
//! pool of words that all answers share.

use std::sync::LazyLock;

use super::draws::Draws;

/// Large enough that a compressor's window sees little of it twice.
const POOL_BYTES: usize = 1 << 20;

const WORDS: &str = "first then so we take add the of to both sides each group total number count \
    share half twice remaining price cost unit per hour minute distance speed because since \
    therefore which gives leaves means check again result sum product difference quotient carry \
    multiply divide subtract round exact estimate compare before after every whole part left over \
    box bag row shelf ticket bottle coin page lap tray crate litre metre gram dollar cent day week \
    month year morning evening train bus baker farmer teacher student garden market school team \
    given known unknown let call it this that value step next now finally write down recall notice";

static POOL: LazyLock<String> = LazyLock::new(|| {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut draws = Draws::from_state(0);
    let mut pool = String::with_capacity(POOL_BYTES + 16);
    while pool.len() < POOL_BYTES {
        match draws.below(12) {
            0 => pool.push_str(&draws.below(1000).to_string()),
            _ => pool.push_str(words.get(draws.below(words.len())).unwrap_or(&"so")),
        }
        pool.push_str(if draws.below(14) == 0 { ". " } else { " " });
    }
    pool.truncate(POOL_BYTES);
    pool
});

/// Appends exactly `len` bytes of text, which needs no escapes in JSON; `variation` chooses where
/// in the pool it begins.
pub fn append_filler(out: &mut Vec<u8>, len: usize, variation: u64) {
    let pool = POOL.as_bytes();
    let mut from = Draws::from_state(variation).below(pool.len());
    let mut left = len;
    while left > 0 {
        let piece = pool.get(from..).unwrap_or(pool);
        let piece = piece.get(..left).unwrap_or(piece);
        out.extend_from_slice(piece);
        left -= piece.len();
        from = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::ANSWER_MARK;
    use super::*;

    fn filler(len: usize, variation: u64) -> String {
        let mut out = Vec::new();
        append_filler(&mut out, len, variation);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn filler_has_the_length_that_was_asked_for() {
        for len in [0, 1, 20_000, POOL_BYTES * 2 + 7] {
            assert_eq!(filler(len, 9).len(), len);
        }
    }

    #[test]
    fn filler_needs_no_escapes_and_holds_no_answer() {
        let text = filler(POOL_BYTES, 1);
        assert_eq!(serde_json::to_string(&text).unwrap().len(), text.len() + 2);
        assert!(!text.contains(ANSWER_MARK));
    }

    #[test]
    fn variations_differ() {
        assert_ne!(filler(50, 1), filler(50, 2));
        assert_eq!(filler(50, 1), filler(50, 1));
    }
}
