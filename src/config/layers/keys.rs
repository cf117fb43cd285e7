//! [`KeyPath`]: the name of one setting, such as `agents.alpha.url`; which there are, and how a text is read for each.

use std::fmt;

use serde_json::Value;

use super::hydra;
use super::overrides::{Meaning, meaning};
use crate::config::option_spec::{Kind, OptionSpec};
use crate::config::{AgentSettings, ConfigError, Origin, Repeats, Settings};

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

/// The kind of the value at `path`.
pub(super) fn kind(path: &KeyPath, origin: &Origin) -> Result<Kind, ConfigError> {
    let keys: Vec<&str> = path.keys().iter().map(String::as_str).collect();
    let found = match keys.as_slice() {
        ["agents"] | ["agents", _] => Ok(Kind::Table),
        ["agents", _, rest @ ..] => within(rest, AgentSettings::options()),
        all => within(all, Settings::options()),
    };
    found.map_err(|hint| ConfigError::UnknownKey {
        key: path.to_string(),
        origin: origin.clone(),
        hint,
    })
}

fn within(keys: &[&str], options: &[OptionSpec]) -> Result<Kind, String> {
    let Some((first, rest)) = keys.split_first() else {
        return Err("a setting has a name".to_owned());
    };
    let Some(option) = options.iter().find(|option| option.key == *first) else {
        if let Some(Meaning::Setting(ours) | Meaning::Opposite(ours)) = meaning(first) {
            return Err(format!("here it is called `{ours}`"));
        }
        return Err(suggestion(first, options.iter().map(|option| option.key)));
    };
    match (option.kind, rest) {
        (kind, []) => Ok(kind),
        (Kind::Tree, _) => Ok(Kind::Tree),
        (Kind::Table, [_]) => Ok(Kind::Text),
        (Kind::Repeats, [_]) => Ok(Kind::Scalar),
        _ => Err(format!("nothing can stand below `{first}`")),
    }
}

/// The name that is most like a wrong one, if one is like it.
pub(crate) fn similar<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let wrong = wrong.to_lowercase().replace('-', "_");
    let likeness = |name: &str| strsim::jaro_winkler(&wrong, &name.to_lowercase());
    let scores = known.into_iter().map(|name| (likeness(name), name));
    let (score, name) = scores.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (score > 0.8).then_some(name)
}

/// A hint for a wrong name: the most similar one, or else all names.
pub(crate) fn suggestion<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    match similar(wrong, known.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("there are {}", known.join(", ")),
    }
}

/// Where a text was written, which decides about commas, quotes and `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// As the value of a flag: a text is taken as it is.
    Flag,
    /// In an environment variable: a text can be quoted, and a list can be separated by commas.
    Environment,
    /// In an override: a text can be quoted.
    Override,
}

/// Reads a text as a value of this kind. Errors never repeat the value of a table: people paste secrets there.
pub(super) fn read(kind: Kind, text: &str, source: Source) -> Result<Value, String> {
    match kind {
        Kind::Text if source == Source::Flag => Ok(Value::String(text.to_owned())),
        Kind::Text => hydra::text(text),
        Kind::Texts if source == Source::Flag => Ok(Value::from(vec![text])),
        Kind::Texts if text.trim_start().starts_with('[') => hydra::value(text),
        Kind::Texts if source == Source::Environment => Ok(text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect()),
        Kind::Texts => hydra::text(text),
        Kind::Repeats if text.contains('=') => {
            let repeats: Repeats = text.parse()?;
            serde_json::to_value(repeats).map_err(|error| error.to_string())
        }
        Kind::Table => match hydra::value(text) {
            Ok(value @ (Value::Object(_) | Value::Null)) => Ok(value),
            _ => Err(String::from(EXPECTED_TABLE)),
        },
        Kind::Scalar | Kind::Repeats | Kind::Tree => hydra::value(text),
    }
}

/// The error for a value that is no table.
pub(super) const EXPECTED_TABLE: &str = "expected a mapping, such as {name: value}";

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

    use serde_json::json;

    #[test]
    fn keys_below_other_keys_are_known() {
        let kind = |text: &str| kind(&KeyPath::parse(text).unwrap(), &Origin::Default);
        assert_eq!(kind("agents.a.url").unwrap(), Kind::Text);
        assert_eq!(kind("agents.a.headers_env.X-Key").unwrap(), Kind::Text);
        assert_eq!(kind("responses_create_params.a.b.c").unwrap(), Kind::Tree);
        assert_eq!(kind("num_repeats.a").unwrap(), Kind::Scalar);
        for (key, hint) in [
            ("concurency", "did you mean `concurrency`?"),
            ("num-repeats", "did you mean `num_repeats`?"),
            ("agents.a.uri", "did you mean `url`?"),
            ("concurrency.a", "nothing can stand below"),
            ("headers_env.a.b", "nothing can stand below"),
            ("num_samples_in_parallel", "here it is called `concurrency`"),
            ("zzz", "there are input, output"),
        ] {
            let message = kind(key).unwrap_err().to_string();
            assert!(message.contains(hint), "{message}");
        }
    }

    #[test]
    fn a_text_is_read_as_its_kind_and_source_ask() {
        use Source::{Environment, Flag, Override};
        let read = |kind, text, source| read(kind, text, source).unwrap();
        assert_eq!(read(Kind::Text, "null", Flag), json!("null"));
        assert_eq!(read(Kind::Text, "null", Override), json!(null));
        assert_eq!(read(Kind::Text, "007", Environment), json!("007"));
        assert_eq!(read(Kind::Texts, "a,b", Flag), json!(["a,b"]));
        assert_eq!(read(Kind::Texts, "a, b", Environment), json!(["a", "b"]));
        assert_eq!(read(Kind::Texts, "[a, b]", Environment), json!(["a", "b"]));
        assert_eq!(
            read(Kind::Repeats, "a=2,_default=1", Flag),
            json!({"a": 2, "_default": 1})
        );
        assert_eq!(read(Kind::Repeats, "{a:2}", Override), json!({"a": 2}));
        assert_eq!(read(Kind::Scalar, "true", Environment), json!(true));
    }
}
