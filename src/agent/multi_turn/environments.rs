use std::sync::Arc;

use indexmap::IndexMap;

use crate::environment::Environment;

/// The environments of an agent, by the task name that each of them serves.
#[derive(Debug, Clone, Default)]
pub struct Environments(IndexMap<Arc<str>, Arc<dyn Environment>>);

/// No environment serves a task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownTask {
    /// None has this name.
    #[error(
        "no environment serves task_name '{name}'. There are: {known}. Add it to the environments \
         of the agent, or correct the row"
    )]
    Name {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The row names none, and it is not clear which is meant.
    #[error(
        "the row has no task_name, and there is not exactly one environment. There are: {known}"
    )]
    NoName {
        /// Those that there are.
        known: String,
    },
}

impl Environments {
    /// These environments.
    pub fn new(environments: impl IntoIterator<Item = (String, Arc<dyn Environment>)>) -> Self {
        let named = environments.into_iter();
        Self(named.map(|(name, it)| (name.into(), it)).collect())
    }

    /// The environment of a task name, and that name. Without a name it is the only one.
    ///
    /// # Errors
    /// There is none of this name; or no name, and not exactly one environment.
    pub fn find(
        &self,
        task_name: Option<&str>,
    ) -> Result<(&Arc<str>, &Arc<dyn Environment>), UnknownTask> {
        match task_name {
            Some(name) => self.0.get_key_value(name).ok_or_else(|| UnknownTask::Name {
                name: name.to_owned(),
                known: self.known(),
            }),
            None if self.0.len() == 1 => self.0.first().ok_or_else(|| self.unnamed()),
            None => Err(self.unnamed()),
        }
    }

    fn unnamed(&self) -> UnknownTask {
        let known = self.known();
        UnknownTask::NoName { known }
    }

    fn known(&self) -> String {
        let mut names: Vec<&str> = self.0.keys().map(AsRef::as_ref).collect();
        names.sort_unstable();
        match names.is_empty() {
            true => "none".into(),
            false => names.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::multi_turn::tests::ScriptedEnvironment;

    fn environments(names: &[&str]) -> Environments {
        let scripted = || Arc::new(ScriptedEnvironment::default()) as Arc<dyn Environment>;
        Environments::new(names.iter().map(|name| ((*name).to_owned(), scripted())))
    }

    #[test]
    fn a_row_without_a_name_gets_the_only_one() {
        let one = environments(&["math"]);
        assert_eq!(&**one.find(None).unwrap().0, "math");
        let error = environments(&["math", "code"]).find(None).unwrap_err();
        assert!(
            error.to_string().ends_with("There are: code, math"),
            "{error}"
        );
        let error = environments(&[]).find(None).unwrap_err();
        assert!(error.to_string().ends_with("There are: none"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_an_error_even_if_there_is_one() {
        let error = environments(&["math"]).find(Some("chess")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("'chess'") && text.contains("There are: math"),
            "{text}"
        );
    }
}
