use std::path::PathBuf;

/// Why a model or a tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No address is given.
    #[error("model '{model}' has no address; give one or several with model_url")]
    NoAddress {
        /// Name of the model.
        model: String,
    },
    /// An address is none.
    #[error("the address '{url}' of model '{model}' can't be used: {reason}")]
    Address {
        /// Name of the model.
        model: String,
        /// What was given.
        url: String,
        /// Why not.
        reason: String,
    },
    /// A tokenizer could not be read.
    #[error(
        "the tokenizer {} can't be used: {reason}; give a tokenizer.json of Hugging Face, its directory, \
         'whitespace' or 'bytes'",
        path.display()
    )]
    Tokenizer {
        /// File that was looked for.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}
