//! [`Prompt`]: a file with templates in Python's format syntax, from which each task gets its messages.

use std::path::Path;

use serde_yaml_ng::{Mapping, Value as Yaml};

use crate::error::{Fatal, USAGE};
use crate::json::{Object, quote};
use crate::python::{FillError, Template, TemplateError};

/// The templates of a prompt file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    system: Option<Template>,
    user: Template,
}

/// What can be wrong with a prompt file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The file cannot be read.
    #[error("Prompt config not found or unreadable: '{path}' (--prompt-config): {source}")]
    Unreadable {
        /// The path as given.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is not YAML.
    #[error("prompt config is not well-formed YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The file is not a mapping of named templates.
    #[error("prompt config must be a mapping with 'user' and optionally 'system'")]
    NotAMapping,
    /// There is no user template.
    #[error("prompt config: user: Field required; add the text of the user message as 'user: ...'")]
    NoUser,
    /// A template is not a text.
    #[error("prompt config: {0}: Input should be a valid string; put quotes around it")]
    NotText(&'static str),
    /// A template is malformed.
    #[error("prompt config: {field}: {source}")]
    Template {
        /// Which of the templates.
        field: &'static str,
        /// What is wrong with it.
        source: TemplateError,
    },
}

impl Fatal for PromptError {
    const CONTEXT: &'static str = "prompt_config";

    fn exit_code(&self) -> u8 {
        USAGE
    }
}

impl Prompt {
    /// Reads the text of a prompt file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn text(path: &Path) -> Result<String, PromptError> {
        std::fs::read_to_string(path).map_err(|source| PromptError::Unreadable {
            path: path.display().to_string(),
            source,
        })
    }

    /// Takes the templates from a YAML mapping; keys other than `user` and `system` are ignored.
    ///
    /// # Errors
    /// If the text is not such a mapping, or a template in it is malformed.
    pub fn from_yaml(text: &str) -> Result<Self, PromptError> {
        let Yaml::Mapping(file) = serde_yaml_ng::from_str(text)? else {
            return Err(PromptError::NotAMapping);
        };
        Ok(Self {
            user: template(&file, "user")?.ok_or(PromptError::NoUser)?,
            system: match file.get("system") {
                Some(Yaml::Null) => None,
                _ => template(&file, "system")?,
            },
        })
    }

    /// Returns the messages for one task, as the JSON text of `responses_create_params.input`.
    ///
    /// # Errors
    /// If a template asks for what the task does not have.
    pub fn messages(&self, task: &Object<'_>) -> Result<String, FillError> {
        let mut messages = Vec::new();
        for (role, template) in [("system", self.system.as_ref()), ("user", Some(&self.user))] {
            if let Some(template) = template {
                let content = quote(&template.fill(task)?);
                messages.push(format!("{{\"role\":\"{role}\",\"content\":{content}}}"));
            }
        }
        Ok(format!("[{}]", messages.join(",")))
    }
}

fn template(file: &Mapping, field: &'static str) -> Result<Option<Template>, PromptError> {
    match file.get(field) {
        None => Ok(None),
        Some(Yaml::String(text)) => {
            let template = Template::parse(text);
            template
                .map(Some)
                .map_err(|source| PromptError::Template { field, source })
        }
        Some(_) => Err(PromptError::NotText(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_message_comes_first_and_is_optional() {
        let task = Object::parse(r#"{"q":"2\"+2","style":"short"}"#).unwrap();
        let prompt =
            Prompt::from_yaml("user: '{q}'\nsystem: |\n  Be {style}.\nother: 1\n").unwrap();
        assert_eq!(
            prompt.messages(&task).unwrap(),
            r#"[{"role":"system","content":"Be short.\n"},{"role":"user","content":"2\"+2"}]"#
        );
        let prompt = Prompt::from_yaml("{user: '{q}', system: null}").unwrap();
        assert_eq!(
            prompt.messages(&task).unwrap(),
            r#"[{"role":"user","content":"2\"+2"}]"#
        );
    }

    #[test]
    fn a_file_that_is_no_prompt_says_why() {
        for (text, expected) in [
            ("system: x", "Field required"),
            ("user:", "user: Input should be a valid string"),
            ("user: 5", "user: Input should be a valid string"),
            (
                "user: x\nsystem: [1]",
                "system: Input should be a valid string",
            ),
            ("user: '}'", "user: Single '}' encountered in format string"),
            ("", "mapping"),
            ("[1]", "mapping"),
            ("user: 'x", "YAML"),
        ] {
            let error = Prompt::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = Prompt::text(Path::new("/nonexistent/prompt.yaml")).unwrap_err();
        assert!(error.to_string().contains("'/nonexistent/prompt.yaml'"));
    }
}
