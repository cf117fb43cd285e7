use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A tool that the model may call, as either API writes it.
#[derive(Debug, Deserialize)]
pub(super) struct Tool<'a> {
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    parameters: Option<&'a RawValue>,
    #[serde(default, borrow)]
    function: Option<Function<'a>>,
}

#[derive(Debug, Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    parameters: Option<&'a RawValue>,
}

impl Tool<'_> {
    /// Its name; none where it is a tool of another kind, which has none.
    pub(super) fn name(&self) -> Option<&str> {
        let function = self.function.as_ref().map(|function| &*function.name);
        function.or(self.name.as_deref())
    }

    /// The JSON text of its parameters' schema.
    pub(super) fn schema(&self) -> &str {
        let own = self
            .function
            .as_ref()
            .and_then(|function| function.parameters);
        own.or(self.parameters).map_or("{}", RawValue::get)
    }
}

/// Whether the model may call tools.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
pub(super) enum ToolChoice {
    Mode(String),
    Named(serde::de::IgnoredAny),
    #[default]
    Auto,
}

impl ToolChoice {
    pub(super) fn allows(&self) -> bool {
        !matches!(self, Self::Mode(mode) if mode == "none")
    }
}
