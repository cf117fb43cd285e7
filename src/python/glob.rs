//! [`glob`]: the files that a list of patterns stands for, by the rules of Python's `glob`.
//!
//! The crates `glob` and `globset` have other rules where it matters here: they tidy the paths that they give, refuse an
//! unclosed bracket, take `^` for `!`, and let `**` cross directories.

use std::collections::HashSet;
use std::path::Path;

use regex::Regex;

/// Expands comma-separated patterns; relative ones start at `base`.
///
/// `*`, `?` and `[…]` match within one path component and match no leading dot; `**` is `*`. The matches of each
/// pattern are sorted by code point, and a path is listed once by its text. A part without wildcards stands for
/// itself if it exists. No match is no error.
pub fn glob(patterns: &str, base: &Path) -> Vec<String> {
    let mut listed = HashSet::new();
    let mut paths = Vec::new();
    let patterns = patterns.split(',').map(str::trim);
    for pattern in patterns.filter(|pattern| !pattern.is_empty()) {
        let mut matches = matches(pattern, base, false);
        matches.sort_unstable();
        matches.retain(|path| listed.insert(path.clone()));
        paths.append(&mut matches);
    }
    paths
}

/// The paths that match, spelled as the pattern spells them.
fn matches(pattern: &str, base: &Path, directories_only: bool) -> Vec<String> {
    let (directory, name) = split(pattern);
    if !has_wildcard(pattern) {
        return existing(pattern, name, &base.join(pattern));
    }
    let directories = match directory {
        // A pattern like `/*` is below the root, which has nothing above it to search.
        _ if directory != pattern && has_wildcard(directory) => matches(directory, base, true),
        _ => vec![directory.to_owned()],
    };
    let mut paths = Vec::new();
    for directory in directories {
        let place = base.join(&directory);
        let names = if has_wildcard(name) {
            matching_names(&place, name, directories_only)
        } else {
            existing(name, name, &place.join(name))
        };
        paths.extend(names.into_iter().map(|name| join(&directory, &name)));
    }
    paths
}

/// A path as it is spelled, if it exists: as a directory where it has no last component.
fn existing(spelled: &str, name: &str, path: &Path) -> Vec<String> {
    // A link that leads nowhere exists, too.
    let exists = if name.is_empty() {
        path.is_dir()
    } else {
        path.symlink_metadata().is_ok()
    };
    exists.then(|| spelled.to_owned()).into_iter().collect()
}

/// The names in a directory that match; none if it cannot be listed.
fn matching_names(directory: &Path, pattern: &str, directories_only: bool) -> Vec<String> {
    let (Ok(entries), Some(matcher)) = (std::fs::read_dir(directory), matcher(pattern)) else {
        return Vec::new();
    };
    let is_hidden = |name: &str| name.starts_with('.') && !pattern.starts_with('.');
    let entries = entries.flatten();
    let entries = entries.filter(|entry| !directories_only || entry.path().is_dir());
    // A name that is not Unicode cannot be written down in a list of paths.
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| !is_hidden(name) && matcher.is_match(name))
        .collect()
}

/// A pattern for names as a regular expression, as Python's `fnmatch` translates it.
fn matcher(pattern: &str) -> Option<Regex> {
    let mut expression = String::from(r"(?s)\A");
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        let mut length = character.len_utf8();
        match (character, class(rest)) {
            ('*', _) => expression.push_str(".*"),
            ('?', _) => expression.push('.'),
            ('[', Some((class, class_length))) => {
                expression.push_str(&class);
                length = class_length;
            }
            _ => expression.push_str(&regex::escape(character.encode_utf8(&mut [0; 4]))),
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    expression.push_str(r"\z");
    Regex::new(&expression).ok()
}

/// The class in brackets that a pattern starts with, and its length in the pattern; `None` if it is not closed.
fn class(pattern: &str) -> Option<(String, usize)> {
    let inner = pattern.strip_prefix('[')?;
    let negated = inner.strip_prefix('!');
    let inner = negated.unwrap_or(inner);
    // A closing bracket in the first place is a member.
    let first = inner.chars().next()?.len_utf8();
    let (members, after) = inner.split_at(first + inner.get(first..)?.find(']')?);
    let members: Vec<char> = members.chars().collect();
    let mut rest = members.as_slice();
    let mut class = String::new();
    loop {
        let (low, high);
        (low, high, rest) = match rest {
            [] => break,
            [low, '-', high, tail @ ..] => (*low, *high, tail),
            [member, tail @ ..] => (*member, *member, tail),
        };
        if low <= high {
            let (low, high) = (u32::from(low), u32::from(high));
            class.push_str(&format!(r"\x{{{low:x}}}-\x{{{high:x}}}"));
        }
    }
    let class = match (negated, class.as_str()) {
        (None, "") => r"[^\s\S]".to_owned(),
        (Some(_), "") => ".".to_owned(),
        (None, class) => format!("[{class}]"),
        (Some(_), class) => format!("[^{class}]"),
    };
    Some((class, pattern.len() - after.len() + 1))
}

fn has_wildcard(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

/// Splits off the last component; the slashes before it go, unless they are the root.
fn split(path: &str) -> (&str, &str) {
    let (head, name) = path.split_at(path.rfind('/').map_or(0, |slash| slash + 1));
    let trimmed = head.trim_end_matches('/');
    (if trimmed.is_empty() { head } else { trimmed }, name)
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() || directory.ends_with('/') {
        return format!("{directory}{name}");
    }
    format!("{directory}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}\n").unwrap();
        }
        folder
    }

    #[test]
    fn wildcards_stay_within_a_component_and_off_leading_dots() {
        let folder = tree(&["b.jsonl", "a.jsonl", ".h.jsonl", "x/a.jsonl", "x/y/c.jsonl"]);
        let found = |patterns: &str| glob(patterns, folder.path());
        assert_eq!(found("*.jsonl"), ["a.jsonl", "b.jsonl"]);
        assert_eq!(found(".*"), [".h.jsonl"]);
        assert_eq!(found("**/*.jsonl"), ["x/a.jsonl"]);
        assert_eq!(found("*/"), ["x/"]);
        assert_eq!(found("x/*/"), ["x/y/"]);
        assert_eq!(found("*/*/c.jsonl"), ["x/y/c.jsonl"]);
        assert_eq!(found("{a,b}.jsonl"), [] as [&str; 0]);
        assert_eq!(found("~, missing, mi*"), [] as [&str; 0]);
    }

    #[test]
    fn paths_keep_their_spelling_and_are_listed_once() {
        let folder = tree(&["x/a.jsonl", "x/b.jsonl"]);
        let found = |patterns: &str| glob(patterns, folder.path());
        assert_eq!(found(" x/b.jsonl , x/*,"), ["x/b.jsonl", "x/a.jsonl"]);
        assert_eq!(
            found("x/a.jsonl,./x/a.jsonl,x//a.jsonl"),
            ["x/a.jsonl", "./x/a.jsonl", "x//a.jsonl"]
        );
        assert_eq!(found("x//*"), ["x/a.jsonl", "x/b.jsonl"]);
        assert_eq!(found("./*/a*"), ["./x/a.jsonl"]);
        let absolute = format!("{}/x/?.jsonl", folder.path().display());
        assert_eq!(found(&absolute).len(), 2);
    }

    #[test]
    fn classes_follow_pythons_rules() {
        let matched = |pattern: &str| {
            let matcher = matcher(pattern).unwrap();
            let hit = |character: &char| matcher.is_match(&character.to_string());
            "09az-]^![\\".chars().filter(hit).collect::<String>()
        };
        assert_eq!(matched("[0-9]"), "09");
        assert_eq!(matched("[!0-9a-z]"), "-]^![\\");
        assert_eq!(matched("[^0]"), "0^");
        assert_eq!(matched("[]]"), "]");
        assert_eq!(matched("[!]]"), "09az-^![\\");
        assert_eq!(matched("[9-0]"), "");
        assert_eq!(matched("[a-]"), "a-");
        assert_eq!(matched("[-a]"), "a-");
        assert_eq!(matched("["), "[");
        assert_eq!(matched("[]"), "");
        assert_eq!(matched("[\\]"), "\\");
    }

    #[test]
    fn many_stars_do_not_take_forever() {
        let (pattern, name) = ("*a".repeat(30), "a".repeat(200));
        assert!(matcher(&pattern).unwrap().is_match(&name));
        assert!(!matcher(&(pattern + "b")).unwrap().is_match(&name));
    }
}
