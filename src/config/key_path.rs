//! [`KeyPath`]: the name of one setting, such as `agents.alpha.url`.

use std::fmt;

/// The keys that lead to one value, outermost first. Printed as TOML prints a dotted key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// A path of these keys; a key may contain dots.
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self(keys.into_iter().map(Into::into).collect())
    }

    /// Splits a dotted key. A part in double quotes may contain dots: `agents."a.b".url`.
    ///
    /// Returns `None` if a part is empty or a quote is not closed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut keys = Vec::new();
        let mut rest = text;
        loop {
            let (key, after) = match rest.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
            };
            if key.is_empty() {
                return None;
            }
            keys.push(key.to_owned());
            if after.is_empty() {
                return Some(Self(keys));
            }
            rest = after.strip_prefix('.')?;
        }
    }

    /// The keys, outermost first.
    pub fn keys(&self) -> &[String] {
        &self.0
    }

    /// The outermost key.
    pub fn root(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// This path with one more key.
    #[must_use]
    pub fn child(&self, key: &str) -> Self {
        let mut keys = self.0.clone();
        keys.push(key.to_owned());
        Self(keys)
    }

    /// The paths that lead here: the outermost key alone, then with one more key each, up to this path.
    pub fn from_root(&self) -> impl Iterator<Item = Self> {
        (1..=self.0.len()).map(|length| Self(self.0.iter().take(length).cloned().collect()))
    }

    /// Whether `self` is `other` or lies under it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, key) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(".")?;
            }
            let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if !key.is_empty() && key.chars().all(bare) {
                f.write_str(key)?;
            } else {
                write!(f, "{}", toml::Value::String(key.replace('\n', " ")))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_and_quoted_keys_are_read_and_printed() {
        let path = KeyPath::parse(r#"agents."v1.5".url"#).unwrap();
        assert_eq!(path.keys(), ["agents", "v1.5", "url"]);
        assert_eq!(path.root(), "agents");
        assert_eq!(KeyPath::parse(&path.to_string()), Some(path));
        for text in ["", "a..b", "a.", ".a", "\"a", "\"a\"b"] {
            assert_eq!(KeyPath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_path_is_within_its_parents_only() {
        let path = KeyPath::new(["a", "b"]);
        assert_eq!(
            path.from_root().collect::<Vec<_>>(),
            [KeyPath::new(["a"]), path.clone()]
        );
        assert!(path.child("c").is_within(&path));
        assert!(path.is_within(&path));
        assert!(!path.is_within(&path.child("c")));
        assert!(!KeyPath::new(["ab"]).is_within(&KeyPath::new(["a"])));
    }
}
