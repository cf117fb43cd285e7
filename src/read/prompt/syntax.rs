//! [`Template`]: a text in Python's format syntax, taken apart.

/// What is wrong with a template, whatever it is filled with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A brace that is neither doubled nor part of a field.
    #[error("Single '{0}' encountered in format string; write it twice to mean the brace itself")]
    LoneBrace(char),
    /// `{}` or `{0}`.
    #[error(
        "Format string contains positional fields; name a field of the task between the braces"
    )]
    Positional,
    /// The text ends within a field.
    #[error("expected '}}' before end of string")]
    Unclosed,
    /// `{a{`.
    #[error("unexpected '{{' in field name")]
    BraceInName,
    /// The text ends within a specification.
    #[error("unmatched '{{' in format spec")]
    UnclosedSpec,
    /// `{a!` at the end.
    #[error("end of string while looking for conversion specifier")]
    NoConversion,
    /// `{a!rx}`.
    #[error("expected ':' after conversion specifier")]
    AfterConversion,
    /// Neither `!r`, `!s` nor `!a`.
    #[error("Unknown conversion specifier '{0}'; use !r, !s or !a")]
    Conversion(char),
    /// `{a[b}`.
    #[error("Missing ']' in format string")]
    Bracket,
    /// `{a.}` or `{a[]}`.
    #[error("Empty attribute in format string")]
    EmptyAttribute,
    /// `{a[b]c}`.
    #[error("Only '.' or '[' may follow ']' in format field specifier")]
    AfterBracket,
    /// Fields within the specification of a field within a specification.
    #[error("Max string recursion exceeded")]
    Nesting,
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Field(Field),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub name: String,
    pub path: Vec<Step>,
    pub conversion: Option<Conversion>,
    pub spec: SpecText,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Attribute(String),
    Key(String),
    Index(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conversion {
    Repr,
    Str,
    Ascii,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SpecText {
    Plain(String),
    /// With fields of its own.
    Filled(Template),
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        // Python's own limit: a text, and the specifications in it.
        const LEVELS: usize = 2;
        Self::parse_level(text, LEVELS)
    }

    fn parse_level(text: &str, levels: usize) -> Result<Self, TemplateError> {
        if levels == 0 {
            return Err(TemplateError::Nesting);
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            let mut following = from.chars();
            let brace = following.next().unwrap_or('{');
            let after = following.as_str();
            if let Some(after_pair) = after.strip_prefix(brace) {
                literal.push(brace);
                rest = after_pair;
                continue;
            }
            if brace == '}' || after.is_empty() {
                return Err(TemplateError::LoneBrace(brace));
            }
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            let (field, after_field) = field(after, levels)?;
            parts.push(Part::Field(field));
            rest = after_field;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }
}

/// Reads a field from behind its opening brace; gives it and what follows its closing brace.
fn field(text: &str, levels: usize) -> Result<(Field, &str), TemplateError> {
    let (name_end, end) = name_end(text)?;
    let (name, path) = path(text.get(..name_end).unwrap_or_default())?;
    let mut rest = text.get(name_end + 1..).unwrap_or_default();
    let mut conversion = None;
    let mut spec = SpecText::Plain(String::new());
    let mut has_spec = end == ':';
    if end == '!' {
        let mut following = rest.chars();
        let letter = following.next().ok_or(TemplateError::NoConversion)?;
        conversion = Some(match letter {
            'r' => Conversion::Repr,
            's' => Conversion::Str,
            'a' => Conversion::Ascii,
            other => return Err(TemplateError::Conversion(other)),
        });
        match following.next() {
            Some('}') => {}
            Some(':') => has_spec = true,
            Some(_) => return Err(TemplateError::AfterConversion),
            None => return Err(TemplateError::UnclosedSpec),
        }
        rest = following.as_str();
    }
    if has_spec {
        let (text, after) = spec_text(rest)?;
        spec = match text.contains('{') {
            true => SpecText::Filled(Template::parse_level(text, levels - 1)?),
            false => SpecText::Plain(text.to_owned()),
        };
        rest = after;
    }
    let field = Field {
        name,
        path,
        conversion,
        spec,
    };
    Ok((field, rest))
}

/// Where a field's name ends, and with which character; brackets hide such characters.
fn name_end(text: &str) -> Result<(usize, char), TemplateError> {
    let mut in_brackets = false;
    for (at, character) in text.char_indices() {
        match character {
            ']' if in_brackets => in_brackets = false,
            _ if in_brackets => {}
            '{' => return Err(TemplateError::BraceInName),
            '[' => in_brackets = true,
            '}' | ':' | '!' => return Ok((at, character)),
            _ => {}
        }
    }
    Err(TemplateError::Unclosed)
}

/// Splits at the brace that closes the field around a specification.
fn spec_text(text: &str) -> Result<(&str, &str), TemplateError> {
    let mut open = 1;
    for (at, character) in text.char_indices() {
        match character {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            let (spec, after) = text.split_at(at);
            return Ok((spec, after.get(1..).unwrap_or_default()));
        }
    }
    Err(TemplateError::UnclosedSpec)
}

/// Splits `name.attribute[key]`.
fn path(text: &str) -> Result<(String, Vec<Step>), TemplateError> {
    let (name, mut rest) = text.split_at(text.find(['.', '[']).unwrap_or(text.len()));
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TemplateError::Positional);
    }
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let step;
        if let Some(after) = rest.strip_prefix('.') {
            let (attribute, tail) = after.split_at(after.find(['.', '[']).unwrap_or(after.len()));
            (step, rest) = (Step::Attribute(attribute.to_owned()), tail);
        } else if let Some(after) = rest.strip_prefix('[') {
            let (key, tail) = after.split_once(']').ok_or(TemplateError::Bracket)?;
            let is_index = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
            let index = if is_index { key.parse().ok() } else { None };
            step = index.map_or_else(|| Step::Key(key.to_owned()), Step::Index);
            rest = tail;
        } else {
            return Err(TemplateError::AfterBracket);
        }
        if matches!(&step, Step::Attribute(name) | Step::Key(name) if name.is_empty()) {
            return Err(TemplateError::EmptyAttribute);
        }
        steps.push(step);
    }
    Ok((name.to_owned(), steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_templates_say_why() {
        for (text, expected) in [
            ("}", TemplateError::LoneBrace('}')),
            ("a } b", TemplateError::LoneBrace('}')),
            ("a {", TemplateError::LoneBrace('{')),
            ("{}", TemplateError::Positional),
            ("{0}", TemplateError::Positional),
            ("{[a]}", TemplateError::Positional),
            ("{!r}", TemplateError::Positional),
            ("{a", TemplateError::Unclosed),
            ("{a[}", TemplateError::Unclosed),
            ("{a[b", TemplateError::Unclosed),
            ("{a{b}}", TemplateError::BraceInName),
            ("{a:", TemplateError::UnclosedSpec),
            ("{a:{b}", TemplateError::UnclosedSpec),
            ("{a!", TemplateError::NoConversion),
            ("{a!r", TemplateError::UnclosedSpec),
            ("{a!rs}", TemplateError::AfterConversion),
            ("{a!x}", TemplateError::Conversion('x')),
            ("{a.}", TemplateError::EmptyAttribute),
            ("{a[]}", TemplateError::EmptyAttribute),
            ("{a[b]c}", TemplateError::AfterBracket),
            ("{a:{b:{c}}}", TemplateError::Nesting),
        ] {
            assert_eq!(Template::parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn doubled_braces_are_text() {
        let template = Template::parse("{{a}} }}{{").unwrap();
        assert_eq!(template.parts, [Part::Text("{a} }{".to_owned())]);
    }

    #[test]
    fn a_field_has_a_path_a_conversion_and_a_spec() {
        let template = Template::parse("{a[b.c].d[0]!r:>{w}}").unwrap();
        let [Part::Field(field)] = template.parts.as_slice() else {
            panic!("one field: {template:?}");
        };
        assert_eq!(field.name, "a");
        let steps = [
            Step::Key("b.c".into()),
            Step::Attribute("d".into()),
            Step::Index(0),
        ];
        assert_eq!(field.path, steps);
        assert_eq!(field.conversion, Some(Conversion::Repr));
        assert!(matches!(&field.spec, SpecText::Filled(template) if template.parts.len() == 2));
    }
}
