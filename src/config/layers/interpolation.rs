//! References between configuration values, in the mini-language of OmegaConf that Hydra-style tools use.
//!
//! [`resolve`] replaces `${key}`, `${a.b}`, `${a[0]}`, and relative `${.sibling}`, `${..uncle}`. A string that is one
//! reference takes the value with its type; within a longer string the value is printed as Python prints it. `\${`
//! is a literal `${`, and before a reference two backslashes are one. The crates that fill `${...}` know variables of the
//! environment, and none of them OmegaConf's paths, types and escapes.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::error::{Fatal, USAGE};
use crate::python;

/// References that are followed from one another; more is taken for a mistake.
const LONGEST_CHAIN: usize = 100;

/// Why a reference has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpolationError {
    /// Not `${key}`.
    #[error("malformed reference in '{0}'; write ${{key}}, or \\${{ for the characters themselves")]
    Malformed(String),
    /// `${name:...}`.
    #[error(
        "'${{{0}}}' calls a resolver, which is not supported; only references to other keys are"
    )]
    Resolver(String),
    /// No such key.
    #[error("Interpolation key '{0}' not found; it must be one of the keys given together with it")]
    NotFound(String),
    /// The reference leads back to itself, directly or through others.
    #[error("Recursive interpolation detected in '{0}'")]
    Recursive(String),
    /// The value that is referred to is `???`, OmegaConf's mark of a value still to be given.
    #[error("'{0}' refers to a value that is still to be given (???)")]
    Missing(String),
}

impl Fatal for InterpolationError {
    const CONTEXT: &'static str = "responses_create_params";

    fn exit_code(&self) -> u8 {
        USAGE
    }
}

/// The same fields with every reference replaced by what it refers to.
pub(crate) fn resolve(
    fields: &Map<String, Value>,
) -> Result<Map<String, Value>, InterpolationError> {
    let root = Value::Object(fields.clone());
    let mut resolver = Resolver {
        root: &root,
        open: Vec::new(),
    };
    match resolver.value(&root, &mut Vec::new())? {
        Value::Object(resolved) => Ok(resolved),
        _ => Ok(Map::new()),
    }
}

/// The value at a path below `root`, with every reference in it and on the way to it replaced. None where there is no
/// such value, or a reference has none: what else `root` holds need not make sense.
pub(crate) fn value_at(root: &Value, path: &[&str]) -> Option<Value> {
    let mut resolver = Resolver {
        root,
        open: Vec::new(),
    };
    let mut place = Path::new();
    let mut value = Cow::Borrowed(root);
    for step in path {
        if let Value::String(text) = &*value {
            value = Cow::Owned(resolver.string(text, &place).ok()?);
        }
        value = child(value, step)?;
        place.push((*step).to_owned());
    }
    resolver.value(&value, &mut place).ok()
}

type Path = Vec<String>;

struct Resolver<'a> {
    root: &'a Value,
    /// The strings that are being resolved, each for the sake of the next.
    open: Vec<Path>,
}

impl<'a> Resolver<'a> {
    /// `path` is where `value` stands.
    fn value(&mut self, value: &Value, path: &mut Path) -> Result<Value, InterpolationError> {
        match value {
            Value::String(text) => self.string(text, path),
            Value::Array(items) => {
                let mut resolved = Vec::with_capacity(items.len());
                for (position, item) in items.iter().enumerate() {
                    path.push(position.to_string());
                    resolved.push(self.value(item, path)?);
                    path.pop();
                }
                Ok(Value::Array(resolved))
            }
            Value::Object(fields) => {
                let mut resolved = Map::new();
                for (name, field) in fields {
                    path.push(name.clone());
                    resolved.insert(name.clone(), self.value(field, path)?);
                    path.pop();
                }
                Ok(Value::Object(resolved))
            }
            _ => Ok(value.clone()),
        }
    }

    fn string(&mut self, text: &str, path: &Path) -> Result<Value, InterpolationError> {
        if !text.contains("${") {
            return Ok(Value::from(text));
        }
        if self.open.contains(path) || self.open.len() >= LONGEST_CHAIN {
            return Err(InterpolationError::Recursive(text.to_owned()));
        }
        self.open.push(path.clone());
        let resolved = self.parts(text, path);
        self.open.pop();
        resolved
    }

    fn parts(&mut self, text: &str, path: &Path) -> Result<Value, InterpolationError> {
        let mut resolved = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            let plain = before.trim_end_matches('\\');
            let backslashes = before.len() - plain.len();
            resolved.push_str(plain);
            resolved.extend(std::iter::repeat_n('\\', backslashes / 2));
            let inside = from.get(2..).unwrap_or_default();
            if backslashes % 2 == 1 {
                resolved.push_str("${");
                rest = inside;
                continue;
            }
            let (key, after) = self.key(inside, text, path, 0)?;
            let value = self.lookup(&key, path)?;
            if resolved.is_empty() && at == 0 && after.is_empty() && rest.len() == text.len() {
                return Ok(value);
            }
            resolved.push_str(&python::Value::from(&value).text());
            rest = after;
        }
        resolved.push_str(rest);
        Ok(Value::from(resolved))
    }

    /// Reads a reference from behind its opening; gives the key, in which references have been replaced, and the
    /// text after it.
    fn key<'t>(
        &mut self,
        inside: &'t str,
        text: &str,
        path: &Path,
        nesting: usize,
    ) -> Result<(String, &'t str), InterpolationError> {
        let malformed = || InterpolationError::Malformed(text.to_owned());
        let mut key = String::new();
        let mut rest = inside;
        loop {
            if let Some(nested) = rest.strip_prefix("${") {
                if nesting >= LONGEST_CHAIN {
                    return Err(InterpolationError::Recursive(text.to_owned()));
                }
                let (nested_key, after) = self.key(nested, text, path, nesting + 1)?;
                let value = self.lookup(&nested_key, path)?;
                key.push_str(&python::Value::from(&value).text());
                rest = after;
                continue;
            }
            let next = rest.chars().next().ok_or_else(malformed)?;
            let after = rest.get(next.len_utf8()..).unwrap_or_default();
            match next {
                '}' => {
                    let key = key.trim_matches([' ', '\t']);
                    let names = !key.trim_start_matches('.').is_empty();
                    if !names || key.contains([' ', '\t']) {
                        return Err(malformed());
                    }
                    return Ok((key.to_owned(), after));
                }
                ':' => {
                    let call = inside.split('}').next().unwrap_or(inside);
                    return Err(InterpolationError::Resolver(call.to_owned()));
                }
                '{' | '\\' | '(' | ')' | '\'' | '"' => return Err(malformed()),
                _ => key.push(next),
            }
            rest = after;
        }
    }

    /// `path` is where the reference stands; leading dots are counted from there.
    fn lookup(&mut self, key: &str, path: &Path) -> Result<Value, InterpolationError> {
        let not_found = || InterpolationError::NotFound(key.to_owned());
        let name = key.trim_start_matches('.');
        let dots = key.len() - name.len();
        let mut place: Path = match dots {
            0 => Vec::new(),
            _ => path
                .get(..path.len().wrapping_sub(dots))
                .ok_or_else(not_found)?
                .to_vec(),
        };
        let mut value: Cow<'a, Value> = Cow::Borrowed(self.root);
        for step in &place {
            value = child(value, step).ok_or_else(not_found)?;
        }
        for step in steps(name).ok_or_else(not_found)? {
            if let Value::String(text) = &*value {
                value = Cow::Owned(self.string(text, &place)?);
            }
            value = child(value, &step).ok_or_else(not_found)?;
            place.push(step);
        }
        if *value == "???" {
            return Err(InterpolationError::Missing(key.to_owned()));
        }
        self.value(&value, &mut place)
    }
}

fn child<'v>(value: Cow<'v, Value>, step: &str) -> Option<Cow<'v, Value>> {
    fn below<'v>(value: &'v Value, step: &str) -> Option<&'v Value> {
        match value {
            Value::Object(fields) => fields.get(step),
            Value::Array(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        }
    }
    match value {
        Cow::Borrowed(value) => below(value, step).map(Cow::Borrowed),
        Cow::Owned(value) => below(&value, step).cloned().map(Cow::Owned),
    }
}

/// Splits `a.b[0]` into its steps.
fn steps(key: &str) -> Option<Path> {
    let mut steps = Vec::new();
    for part in key.split('.') {
        let (name, mut brackets) = part.split_at(part.find('[').unwrap_or(part.len()));
        if !name.is_empty() || brackets.is_empty() {
            steps.push(name.to_owned());
        }
        while !brackets.is_empty() {
            let (inner, after) = brackets.strip_prefix('[')?.split_once(']')?;
            steps.push(inner.to_owned());
            brackets = after;
        }
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str = r#"{"t":0.5,"i":3,"s":"str","n":null,"b":true,"l":[1,2,{"x":9}],
        "d":{"k":"v","e":{"f":[7]}},"big":1e22}"#;

    fn resolved(text: &str) -> Result<Value, InterpolationError> {
        let mut fields: Map<String, Value> = serde_json::from_str(FIELDS).unwrap();
        fields.insert("q".to_owned(), Value::from(text));
        Ok(resolve(&fields)?.remove("q").unwrap())
    }

    fn whole(fields: &str) -> Result<String, InterpolationError> {
        Ok(Value::Object(resolve(&serde_json::from_str(fields).unwrap())?).to_string())
    }

    /// Expected values are what OmegaConf 2.3.1 gives.
    #[test]
    fn references_give_values_and_within_text_their_print() {
        for (text, expected) in [
            ("${t}", "0.5"),
            ("${ t }", "0.5"),
            ("${n}", "null"),
            ("${d}", r#"{"k":"v","e":{"f":[7]}}"#),
            ("${d.e.f[0]}", "7"),
            ("${l.2.x}", "9"),
            ("${d[k]}", "\"v\""),
            ("${.t}", "0.5"),
            ("x${t}${i}${n}${b}", "\"x0.53NoneTrue\""),
            ("${big}!", "\"1e+22!\""),
            ("a${l}", r#""a[1, 2, {'x': 9}]""#),
            ("${t} ", "\"0.5 \""),
            (r"\${t}", "\"${t}\""),
            (r"a\${t}b${i}", "\"a${t}b3\""),
            (r"\\${t}", r#""\\0.5""#),
            (r"\\\${t}", r#""\\${t}""#),
            (r"a\b\\", r#""a\\b\\\\""#),
            (r"\\ ${t} \\", r#""\\\\ 0.5 \\\\""#),
            ("$t $${t} } {t} {{${t}}}", r#""$t $0.5 } {t} {{0.5}}""#),
            ("???", "\"???\""),
        ] {
            assert_eq!(resolved(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn references_follow_one_another() {
        assert_eq!(
            whole(r#"{"a":"${b}","b":"${c}","c":5}"#).unwrap(),
            r#"{"a":5,"b":5,"c":5}"#
        );
        assert_eq!(
            whole(r#"{"a":"${b.c}","b":"${d}","d":{"c":4}}"#).unwrap(),
            r#"{"a":4,"b":{"c":4},"d":{"c":4}}"#
        );
        assert_eq!(
            whole(r#"{"a":{"x":"${..z}","y":["${...z}"]},"z":8}"#).unwrap(),
            r#"{"a":{"x":8,"y":[8]},"z":8}"#
        );
        assert_eq!(
            whole(r#"{"q":"${r}","r":"\\${c}"}"#).unwrap(),
            r#"{"q":"${c}","r":"${c}"}"#
        );
        assert_eq!(
            whole(r#"{"q":"${d.${s}}","s":"k","d":{"k":1}}"#).unwrap(),
            r#"{"q":1,"s":"k","d":{"k":1}}"#
        );
    }

    #[test]
    fn a_value_can_be_had_though_others_make_no_sense() {
        let root = serde_json::json!({"a": {"b": "${c}"}, "c": {"d": "${e.f}"}, "e": {"f": 7}, "x": "${nowhere}"});
        let at = |path: &[&str]| value_at(&root, path);
        assert_eq!(at(&["a", "b", "d"]), Some(Value::from(7)));
        assert_eq!(at(&["c"]), Some(serde_json::json!({"d": 7})));
        assert_eq!(at(&["x"]), None);
        assert_eq!(at(&["a", "z"]), None);
    }

    #[test]
    fn references_to_nothing_are_errors() {
        for text in [
            "${missing}",
            "${d.missing}",
            "${t.x}",
            "${l.5}",
            "${l[-1]}",
            "${...t}",
            "${d.}",
        ] {
            assert!(
                matches!(resolved(text), Err(InterpolationError::NotFound(_))),
                "{text}"
            );
        }
        for text in ["${", "${t", "${}", "${a b}", "${'t'}", "$${{t}}", "${a\\b}"] {
            assert!(
                matches!(resolved(text), Err(InterpolationError::Malformed(_))),
                "{text}"
            );
        }
        for text in ["${oc.env:HOME}", "${a:}"] {
            assert!(
                matches!(resolved(text), Err(InterpolationError::Resolver(_))),
                "{text}"
            );
        }
        for fields in [
            r#"{"a":"${a}"}"#,
            r#"{"a":"${b}","b":"x${a}"}"#,
            r#"{"a":{"b":"${a}"}}"#,
        ] {
            assert!(
                matches!(whole(fields), Err(InterpolationError::Recursive(_))),
                "{fields}"
            );
        }
        assert!(matches!(
            whole(r#"{"a":"???","b":"${a}"}"#),
            Err(InterpolationError::Missing(_))
        ));
    }
}
