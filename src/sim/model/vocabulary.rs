//! The tokens of the model: [`encode`] and [`decode`]. A byte is a token with its own value as id,
//! and some pairs of bytes are tokens too, so that a text has several tokenisations.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::super::draws::Draws;

/// Pairs of bytes that are tokens, from id 256.
const PAIRS: &[&[u8; 2]] = &[
    b"th", b"he", b"in", b"er", b"an", b"re", b"on", b"at", b"en", b"nd", b"ti", b"es", b"or",
    b"te", b"of", b"ed", b"is", b"it", b"al", b"ar", b"st", b"to", b"nt", b"ng", b"se", b"ha",
    b"as", b"ou", b"io", b"le", b"ve", b"co", b"me", b"de", b"hi", b"ri", b"ro", b"ic", b"ne",
    b"ea", b"ra", b"ce", b"e ", b"s ", b"t ", b"d ", b" t", b" a", b" i", b" s", b" w", b"Th",
    b"sw", b"we", b". ", b", ", b"12", b"10", b"20", b"00", b"42", b"ow", b"  ", b"\n\n",
];

/// The first id that is a pair.
const FIRST_PAIR: u32 = 256;

static IDS: LazyLock<HashMap<[u8; 2], u32>> =
    LazyLock::new(|| PAIRS.iter().map(|pair| **pair).zip(FIRST_PAIR..).collect());

/// One tokenisation of a text, from left to right: with `draws`, a pair of bytes becomes one token
/// or two by chance; without, always one.
pub(super) fn encode(text: &[u8], mut draws: Option<&mut Draws>) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let pair = after.first().and_then(|second| IDS.get(&[*first, *second]));
        let merged = pair.filter(|_| {
            let draws = draws.as_mut();
            draws.is_none_or(|draws| draws.below(2) == 0)
        });
        ids.push(merged.copied().unwrap_or(u32::from(*first)));
        rest = match merged {
            Some(_) => after.get(1..).unwrap_or_default(),
            None => after,
        };
    }
    ids
}

/// The bytes of a token; none where there is no such token.
pub(super) fn bytes_of(id: u32) -> Option<([u8; 2], usize)> {
    match u8::try_from(id) {
        Ok(byte) => Some(([byte, 0], 1)),
        Err(_) => {
            let place = usize::try_from(id - FIRST_PAIR).ok()?;
            PAIRS.get(place).map(|pair| (**pair, 2))
        }
    }
}

/// The bytes of tokens.
///
/// # Errors
/// The first id that is no token.
pub(super) fn decode(ids: &[u32]) -> Result<Vec<u8>, u32> {
    let mut bytes = Vec::with_capacity(ids.len() + ids.len() / 2);
    for id in ids {
        let (token, len) = bytes_of(*id).ok_or(*id)?;
        bytes.extend(token.into_iter().take(len));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Therefore the answer is 42. \u{e9}\u{1f980}";

    #[test]
    fn a_text_has_several_tokenisations_and_all_mean_the_same() {
        let tokenisations: std::collections::BTreeSet<Vec<u32>> = (0..20)
            .map(|seed| encode(TEXT.as_bytes(), Some(&mut Draws::from_state(seed))))
            .chain([encode(TEXT.as_bytes(), None)])
            .collect();
        assert!(tokenisations.len() > 15);
        for ids in tokenisations {
            assert_eq!(decode(&ids).unwrap(), TEXT.as_bytes());
            assert!(ids.iter().any(|id| *id >= FIRST_PAIR));
        }
    }

    #[test]
    fn every_token_has_bytes_and_no_other_id_has() {
        let count = FIRST_PAIR + PAIRS.len() as u32;
        for id in 0..count {
            let (bytes, len) = bytes_of(id).unwrap();
            assert!(!bytes[..len].is_empty());
        }
        assert_eq!(decode(&[65, count, 66]), Err(count));
        assert_eq!(IDS.len(), PAIRS.len(), "no pair is there twice");
    }
}
