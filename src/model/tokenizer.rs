use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ModelError;

/// The name of a tokenizer's file in the directory of its model.
const FILE: &str = "tokenizer.json";

/// Cuts texts into tokens.
pub trait Tokenizer: fmt::Debug + Send + Sync {
    /// Returns the tokens of a text, without special tokens at its beginning or end.
    fn encode(&self, text: &str) -> Encoding;

    /// Returns the text of tokens, special ones included; none if the tokens have no text.
    fn decode(&self, _ids: &[u32]) -> Option<String> {
        None
    }
}

/// A text as tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// Number of tokens.
    pub count: u64,
    /// The tokens, if they have numbers; their number is then `count`.
    pub ids: Option<Vec<u32>>,
}

/// A tokenizer that splits at white space, for tests and for models without a tokenizer.
#[derive(Debug, Clone, Copy, Default)]
pub struct WhitespaceTokenizer;

/// A tokenizer whose tokens are the bytes of UTF-8, with the byte's value as number.
#[derive(Debug, Clone, Copy, Default)]
pub struct BytesTokenizer;

/// A tokenizer of Hugging Face. It adds no special tokens, never pads and never truncates.
pub struct HuggingFace {
    tokenizer: tokenizers::Tokenizer,
    path: PathBuf,
}

impl Tokenizer for WhitespaceTokenizer {
    fn encode(&self, text: &str) -> Encoding {
        Encoding {
            count: text.split_whitespace().count() as u64,
            ids: None,
        }
    }
}

impl Tokenizer for BytesTokenizer {
    fn encode(&self, text: &str) -> Encoding {
        Encoding::of(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        let bytes = ids.iter().map(|id| u8::try_from(*id).ok());
        String::from_utf8(bytes.collect::<Option<_>>()?).ok()
    }
}

impl HuggingFace {
    /// Opens a `tokenizer.json`, or the directory that holds one.
    ///
    /// # Errors
    /// The file does not exist, or can't be read.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let path = if path.is_dir() {
            path.join(FILE)
        } else {
            path.to_owned()
        };
        let refuse = |reason: String| ModelError::Tokenizer {
            path: path.clone(),
            reason,
        };
        let mut tokenizer =
            tokenizers::Tokenizer::from_file(&path).map_err(|source| refuse(source.to_string()))?;
        tokenizer
            .with_truncation(None)
            .map_err(|source| refuse(source.to_string()))?;
        tokenizer.with_padding(None);
        Ok(Self { tokenizer, path })
    }
}

impl Tokenizer for HuggingFace {
    /// Encodes a text. If that fails, the count is the number of bytes, which is more than any
    /// tokenizer produces, and there are no ids.
    fn encode(&self, text: &str) -> Encoding {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => Encoding::of(encoding.get_ids().to_vec()),
            Err(_) => Encoding {
                count: text.len() as u64,
                ids: None,
            },
        }
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        self.tokenizer.decode(ids, false).ok()
    }
}

impl fmt::Debug for HuggingFace {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "HuggingFace({})", self.path.display())
    }
}

impl Encoding {
    fn of(ids: Vec<u32>) -> Self {
        Self {
            count: ids.len() as u64,
            ids: Some(ids),
        }
    }
}

/// Returns the tokenizer that a setting names: `whitespace`, `bytes`, or the path of a `tokenizer.json` or of
/// its directory.
///
/// # Errors
/// No tokenizer can be read at that path.
pub fn tokenizer(spec: &str) -> Result<Arc<dyn Tokenizer>, ModelError> {
    Ok(match spec {
        "whitespace" => Arc::new(WhitespaceTokenizer),
        "bytes" => Arc::new(BytesTokenizer),
        path => Arc::new(HuggingFace::open(Path::new(path))?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_and_bytes_have_numbers() {
        let encode = |spec, text| tokenizer(spec).unwrap().encode(text);
        let words = Encoding {
            count: 3,
            ids: None,
        };
        assert_eq!(encode("whitespace", " a\u{2003}b\n c "), words);
        assert_eq!(encode("whitespace", " "), Encoding::default());
        assert_eq!(encode("bytes", "aé"), Encoding::of(vec![97, 0xc3, 0xa9]));
    }

    #[test]
    fn a_tokenizer_of_hugging_face_adds_pads_and_cuts_nothing() {
        let json = serde_json::json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
            "added_tokens": [{"id": 1, "content": "[CLS]", "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false, "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}},
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[CLS]": 1, "red": 2, "blue": 3},
                      "unk_token": "[UNK]"}
        });
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, json.to_string()).unwrap();
        for path in [directory.path(), &file] {
            let tokenizer = tokenizer(path.to_str().unwrap()).unwrap();
            let known = tokenizer.encode("blue red blue");
            assert_eq!(known, Encoding::of(vec![3, 2, 3]));
            let unknown = tokenizer.encode("green");
            let bytes = Encoding {
                count: 5,
                ids: None,
            };
            assert_eq!(unknown, bytes);
        }
    }

    #[test]
    fn a_tokenizer_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let error = tokenizer(path).unwrap_err().to_string();
        assert!(error.contains(&format!("{path}/tokenizer.json")), "{error}");
    }
}
