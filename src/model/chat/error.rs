//! [`ConversionError`].

/// What of a conversation or an answer has no counterpart in the other interface. Indices count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// A type of item that only Responses has.
    #[error(
        "item {index} of the conversation is of type `{kind}`, which Chat Completions cannot say: set `model_api = \"responses\"`"
    )]
    Item {
        /// Where the item is in the conversation.
        index: usize,
        /// Its `type`.
        kind: String,
    },
    /// A part of an item's content that only Responses has.
    #[error(
        "part {part} of item {index} (`{kind}`) of the conversation is {what}, which Chat Completions cannot say there: set `model_api = \"responses\"`"
    )]
    Part {
        /// Where the item is in the conversation.
        index: usize,
        /// The item's `type`.
        kind: String,
        /// Where the part is in the item.
        part: usize,
        /// The part's `type`, and what of it cannot be said.
        what: String,
    },
    /// An item that is no Responses item.
    #[error("item {index} (`{kind}`) of the conversation {problem}: correct it in the task")]
    MalformedItem {
        /// Where the item is in the conversation.
        index: usize,
        /// Its `type`, or `?`.
        kind: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A type of tool that only Responses has.
    #[error(
        "tool {index} is of type `{kind}`, but Chat Completions has only functions here: set `model_api = \"responses\"`"
    )]
    Tool {
        /// Where the tool is in `tools`.
        index: usize,
        /// Its `type`.
        kind: String,
    },
    /// A parameter's value that only Responses has.
    #[error(
        "the parameter `{name}` {problem}, which Chat Completions cannot say: set `model_api = \"responses\"`"
    )]
    Parameter {
        /// Its name, with dots for what is in objects.
        name: String,
        /// What it asks for.
        problem: String,
    },
    /// A parameter that is malformed for either interface.
    #[error("the parameter `{name}` {problem}: correct it in the task")]
    MalformedParameter {
        /// Its name, with dots for what is in objects.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A chat answer that is none.
    #[error("the chat completion {0}: see the model server's log")]
    Completion(String),
}
