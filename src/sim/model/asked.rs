//! The prompt of a completion: [`Asked`].

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// Text or token ids: one prompt, or a list that holds one.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    Text(String),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match from.deserialize_any(AskedVisitor)? {
            Part::Whole(asked) => Ok(asked),
            Part::Id(_) => Err(D::Error::custom("a prompt is text or a list of token ids")),
        }
    }
}

/// A prompt, or a token of one.
enum Part {
    Id(u32),
    Whole(Asked),
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AskedVisitor)
    }
}

struct AskedVisitor;

impl<'de> Visitor<'de> for AskedVisitor {
    type Value = Part;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("text or token ids")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Part, E> {
        u32::try_from(id).map(Part::Id).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Part, E> {
        Ok(Part::Whole(Asked::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Part, A::Error> {
        let mut ids = match parts.next_element()? {
            None => Vec::new(),
            Some(Part::Id(id)) => vec![id],
            Some(whole) => {
                return match parts.next_element::<Part>()? {
                    None => Ok(whole),
                    Some(_) => Err(A::Error::custom("only one prompt at a time")),
                };
            }
        };
        while let Some(id) = parts.next_element()? {
            ids.push(id);
        }
        Ok(Part::Whole(Asked::Ids(ids)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(json: &str) -> Option<Asked> {
        serde_json::from_str(json).ok()
    }

    #[test]
    fn a_prompt_is_text_or_ids_and_may_be_in_a_list() {
        let ids = || Some(Asked::Ids(vec![7, 300]));
        assert_eq!(asked("[7, 300]"), ids());
        assert_eq!(asked("[[7, 300]]"), ids());
        let text = || Some(Asked::Text("a\nb".into()));
        assert_eq!(asked(r#""a\nb""#), text());
        assert_eq!(asked(r#"["a\nb"]"#), text());
        assert_eq!(asked("[]"), Some(Asked::Ids(Vec::new())));
        for json in [
            "7",
            r#"["a", "b"]"#,
            "[[7], [8]]",
            "[7, \"a\"]",
            "[-1]",
            "{}",
            "null",
        ] {
            assert_eq!(asked(json), None, "{json}");
        }
    }
}
