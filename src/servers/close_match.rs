//! Python's `difflib.get_close_matches` for one match, since messages that name a near name are compared with NeMo Gym's.

/// Names that are less alike are not near.
const CUTOFF: f64 = 0.6;

/// The name most like `word`; none if none is near. Of several that are equally like it, the last by code point.
///
/// Python leaves characters that are common out of names of 200 characters and more; here all count.
pub(super) fn close_match<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().collect();
    let likeness = |name: &str| {
        let name: Vec<char> = name.chars().collect();
        let length = name.len() + word.len();
        match length {
            0 => 1.0,
            _ => 2.0 * in_common(&name, &word) as f64 / length as f64,
        }
    };
    names
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness >= CUTOFF)
        .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)))
        .map(|(_, name)| name)
}

/// Characters in the longest part that both have in common, and in those before and behind it.
fn in_common(a: &[char], b: &[char]) -> usize {
    let (mut length, mut end_a, mut end_b) = (0, 0, 0);
    // Lengths of the common parts that end before each place of `b`, for the character of `a` before.
    let mut before = vec![0; b.len() + 1];
    for (i, in_a) in a.iter().enumerate() {
        let mut now = vec![0; b.len() + 1];
        for (j, (in_b, (ended, end))) in b
            .iter()
            .zip(before.iter().zip(now.iter_mut().skip(1)))
            .enumerate()
        {
            if in_a == in_b {
                *end = ended + 1;
                if *end > length {
                    (length, end_a, end_b) = (*end, i + 1, j + 1);
                }
            }
        }
        before = now;
    }
    if length == 0 {
        return 0;
    }
    let part = |text: &[char], from: usize, to: usize| -> Vec<char> {
        text.get(from..to).unwrap_or_default().to_vec()
    };
    let left = in_common(&part(a, 0, end_a - length), &part(b, 0, end_b - length));
    let right = in_common(&part(a, end_a, a.len()), &part(b, end_b, b.len()));
    length + left + right
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are what CPython 3.13 gives.
    #[test]
    fn near_names_are_those_of_difflib() {
        let names = ["ape", "apple", "peach", "puppy"];
        for (word, expected) in [
            ("appel", Some("apple")),
            ("ap", Some("ape")),
            ("puppies", Some("puppy")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(close_match(word, names.into_iter()), expected, "{word}");
        }
        let tie = ["abcx", "abcz", "abcy"];
        assert_eq!(close_match("abc", tie.into_iter()), Some("abcz"));
        // The longest common part counts, and not the largest number of common characters.
        assert_eq!(close_match("tide", ["diet"].into_iter()), None);
        assert_eq!(close_match("abcd", ["bcda"].into_iter()), Some("bcda"));
    }
}
