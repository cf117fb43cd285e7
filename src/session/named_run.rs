use crate::store::RunStore;

/// A run among those that a session is over.
#[derive(Debug, Clone)]
pub struct NamedRun {
    /// What its rows are told apart by, in the column `run`.
    pub label: String,
    /// Name of the schema that holds its own tables, in lower case as SQL reads names; none where
    /// it has no tables of its own.
    pub schema: Option<String>,
    /// Where it is.
    pub run: RunStore,
}
