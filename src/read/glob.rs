//! [`expand`]: the files that a list of patterns stands for, by the rules of Python's `glob`.
//!
//! The `glob` crate has other rules where it matters here: it tidies the paths that it gives, refuses an unclosed
//! bracket, and lets `**` cross directories.

use std::collections::HashSet;
use std::path::Path;

/// Expands comma-separated patterns; relative ones start at `base`.
///
/// `*`, `?` and `[…]` match within one path component and match no leading dot; `**` is `*`. The matches of each
/// pattern are sorted by code point, and a path is listed once by its text. A part without wildcards stands for
/// itself if it exists. No match is no error.
pub fn expand(patterns: &str, base: &Path) -> Vec<String> {
    let mut listed = HashSet::new();
    let mut paths = Vec::new();
    for pattern in patterns
        .split(',')
        .map(str::trim)
        .filter(|pattern| !pattern.is_empty())
    {
        let mut matches = matches(pattern, base, false);
        matches.sort_unstable();
        paths.extend(
            matches
                .into_iter()
                .filter(|path| listed.insert(path.clone())),
        );
    }
    paths
}

/// The paths that match, spelled as the pattern spells them.
fn matches(pattern: &str, base: &Path, directories_only: bool) -> Vec<String> {
    let (directory, name) = split(pattern);
    if !has_wildcard(pattern) {
        let found = match name {
            "" => base.join(directory).is_dir(),
            _ => exists(&base.join(pattern)),
        };
        return if found {
            vec![pattern.to_owned()]
        } else {
            Vec::new()
        };
    }
    let directories = match directory {
        // A pattern like `/*` is below the root, which has nothing above it to search.
        _ if directory != pattern && has_wildcard(directory) => matches(directory, base, true),
        _ => vec![directory.to_owned()],
    };
    let mut paths = Vec::new();
    for directory in directories {
        let place = base.join(&directory);
        let names = match (name, has_wildcard(name)) {
            ("", _) => {
                if place.is_dir() {
                    vec![String::new()]
                } else {
                    Vec::new()
                }
            }
            (_, false) => {
                if exists(&place.join(name)) {
                    vec![name.to_owned()]
                } else {
                    Vec::new()
                }
            }
            (_, true) => matching_names(&place, name, directories_only),
        };
        paths.extend(names.into_iter().map(|name| join(&directory, &name)));
    }
    paths
}

/// The names in a directory that match; none if it cannot be listed.
fn matching_names(directory: &Path, pattern: &str, directories_only: bool) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let pattern_characters: Vec<char> = pattern.chars().collect();
    let mut names = Vec::new();
    for entry in entries.flatten() {
        // A name that is not Unicode cannot be written down in a list of paths.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let hidden = name.starts_with('.') && !pattern.starts_with('.');
        if hidden || (directories_only && !entry.path().is_dir()) {
            continue;
        }
        let characters: Vec<char> = name.chars().collect();
        if name_matches(&pattern_characters, &characters) {
            names.push(name);
        }
    }
    names
}

/// Matches a name; after a mismatch only the last star is tried again, so the time is at most quadratic.
fn name_matches(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut position) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while position < name.len() {
        let rest = pattern.get(at..).unwrap_or_default();
        if rest.first() == Some(&'*') {
            at += 1;
            retry = Some((at, position));
            continue;
        }
        let length = name
            .get(position)
            .and_then(|character| one_matches(rest, *character));
        if let Some(length) = length {
            at += length;
            position += 1;
        } else if let Some((after_star, from)) = retry {
            (at, position) = (after_star, from + 1);
            retry = Some((after_star, from + 1));
        } else {
            return false;
        }
    }
    pattern
        .get(at..)
        .unwrap_or_default()
        .iter()
        .all(|character| *character == '*')
}

/// If the pattern starts with something that matches `character`, how long that something is.
fn one_matches(pattern: &[char], character: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => match class(pattern) {
            Some((members, length)) => members.contains(character).then_some(length),
            None => (character == '[').then_some(1),
        },
        literal => (*literal == character).then_some(1),
    }
}

/// What stands between brackets.
struct Class<'a> {
    negated: bool,
    members: &'a [char],
}

impl Class<'_> {
    fn contains(&self, character: char) -> bool {
        let mut rest = self.members;
        let mut found = false;
        loop {
            match rest {
                [] => return found != self.negated,
                [low, '-', high, tail @ ..] => {
                    found |= (*low..=*high).contains(&character);
                    rest = tail;
                }
                [member, tail @ ..] => {
                    found |= *member == character;
                    rest = tail;
                }
            }
        }
    }
}

/// The class that the pattern starts with, and its length with both brackets; `None` if it is not closed.
fn class(pattern: &[char]) -> Option<(Class<'_>, usize)> {
    let negated = pattern.get(1) == Some(&'!');
    let start = 1 + usize::from(negated);
    // A closing bracket in the first place is a member.
    let closing = pattern
        .iter()
        .skip(start + 1)
        .position(|character| *character == ']')?
        + start
        + 1;
    let members = pattern.get(start..closing)?;
    Some((Class { negated, members }, closing + 1))
}

fn has_wildcard(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

/// Also true of a link that leads nowhere.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
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
        let found = |patterns: &str| expand(patterns, folder.path());
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
        let found = |patterns: &str| expand(patterns, folder.path());
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
            let pattern: Vec<char> = pattern.chars().collect();
            let hit = |character: &char| name_matches(&pattern, &[*character]);
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
        let pattern: Vec<char> = "*a".repeat(30).chars().collect();
        let name = vec!['a'; 200];
        assert!(name_matches(&pattern, &name));
        assert!(!name_matches(&[pattern, vec!['b']].concat(), &name));
    }
}
