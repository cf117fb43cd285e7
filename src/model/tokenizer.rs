use std::fmt::Debug;

/// Turns text into tokens.
pub trait Tokenizer: Debug + Send + Sync {
    /// Tokens of a text; ids are absent where the tokenizer has none.
    fn encode(&self, text: &str) -> Encoding;
}

/// The tokens of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoding {
    /// How many there are.
    pub count: u64,
    /// Which they are, where they are known.
    pub ids: Option<Vec<u32>>,
}

/// Takes every word between white space for a token. For tests, and for models whose tokenizer is
/// not at hand.
#[derive(Debug, Clone, Copy, Default)]
pub struct WhitespaceTokenizer;

impl Tokenizer for WhitespaceTokenizer {
    fn encode(&self, text: &str) -> Encoding {
        Encoding {
            count: text.split_whitespace().count() as u64,
            ids: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_between_white_space_are_tokens_without_ids() {
        let encoding = WhitespaceTokenizer.encode(" a  b\n\tc ");
        assert_eq!((encoding.count, encoding.ids), (3, None));
        assert_eq!(WhitespaceTokenizer.encode(" ").count, 0);
    }
}
