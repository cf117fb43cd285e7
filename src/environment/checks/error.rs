//! [`CheckError`].

/// Why a check cannot judge: its settings or its sample are wrong, not the answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A setting that no sample could be judged with.
    #[error("the setting `{name}` of the check {problem}: correct it in the configuration")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The sample does not have the field.
    #[error(
        "the sample's metadata has no field `{field}`: add it to the data, or name another field in the check"
    )]
    Missing {
        /// The field's name.
        field: String,
    },
    /// The sample has the field, but nothing can be compared with what is in it.
    #[error("the field `{field}` of the sample's metadata {problem}: correct the data")]
    Unusable {
        /// The field's name.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The answer costs too much to judge.
    #[error("the answer cannot be judged: {0}")]
    TooCostly(String),
}
