//! [`VariableName`]: secrets are only ever given by the name of the environment variable that holds them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

/// The name of an environment variable: letters, digits and `_`, not starting with a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct VariableName(String);

/// The text is no name of an environment variable. It is not repeated, since it may be the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the name of an environment variable (letters, digits and _); never write the secret itself: \
     export it in a variable and give the variable's name"
)]
pub struct VariableNameError;

impl FromStr for VariableName {
    type Err = VariableNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if text.is_empty()
            || text.starts_with(|c: char| c.is_ascii_digit())
            || !text.chars().all(allowed)
        {
            return Err(VariableNameError);
        }
        Ok(Self(text.to_owned()))
    }
}

impl Deref for VariableName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VariableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for VariableName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_place_of_a_name_is_refused_and_not_repeated() {
        assert_eq!(&*"MY_TOKEN2".parse::<VariableName>().unwrap(), "MY_TOKEN2");
        for text in ["sk-abc", "", "2A", "Bearer x", "A=B"] {
            assert_eq!(text.parse::<VariableName>(), Err(VariableNameError));
        }
        let message = serde_json::from_str::<VariableName>("\"sk-abc\"")
            .unwrap_err()
            .to_string();
        assert!(!message.contains("sk-abc"), "{message}");
    }
}
