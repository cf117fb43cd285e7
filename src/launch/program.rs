//! [`GymProgram`]: NeMo Gym's program, where it is, and the overrides that it gets.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::LaunchError;
use crate::config::Settings;
use crate::http::Secrets;
use crate::python;

/// The file name of the program.
const NAME: &str = "gym";

/// NeMo Gym's program with the configuration of a sweep.
#[derive(Debug)]
pub(super) struct GymProgram {
    path: PathBuf,
    /// Overrides without secrets.
    overrides: Vec<String>,
    secrets: Vec<String>,
    config_paths: Vec<String>,
    /// The value of [`ROOTS`].
    roots: String,
}

/// The variable that names further folders of NeMo Gym's components.
pub(super) const ROOTS: &str = "NEMO_GYM_EXTRA_ROOTS";

/// Returns the value of [`ROOTS`] with these folders first.
pub(crate) fn roots(search_dirs: &[String]) -> String {
    let others = env::var(ROOTS).ok().filter(|roots| !roots.is_empty());
    let roots: Vec<&str> = search_dirs
        .iter()
        .chain(&others)
        .map(String::as_str)
        .collect();
    roots.join(":")
}

impl GymProgram {
    /// Finds the program for a sweep with these settings.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find(settings: &Settings, secrets: Vec<String>) -> Result<Self, LaunchError> {
        let paths = settings.config_paths.iter().map(|path| quoted(path));
        let paths: Vec<String> = paths.collect();
        let mut overrides = vec![format!("+config_paths=[{}]", paths.join(","))];
        overrides.extend(settings.gym_overrides.iter().cloned());
        if settings.allow_unsupported_pairing {
            overrides.push("++allow_unsupported_pairing=true".to_owned());
        }
        Ok(Self {
            path: find(settings.gym_program.as_deref())?,
            overrides,
            secrets,
            config_paths: settings.config_paths.clone(),
            roots: roots(&settings.search_dirs),
        })
    }

    pub(super) fn roots(&self) -> &str {
        &self.roots
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the arguments of one of its commands. `more` win over the overrides of the settings.
    pub(super) fn arguments(
        &self,
        command: &[&str],
        more: impl IntoIterator<Item = String>,
    ) -> Vec<OsString> {
        let command = command.iter().map(|word| (*word).to_owned());
        let overrides = self.overrides.iter().chain(&self.secrets).cloned();
        command
            .chain(overrides)
            .chain(more)
            .map(OsString::from)
            .collect()
    }

    /// Returns what servers that fit have in common: the program, the overrides, and the content of the configuration.
    pub(super) fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let here = env::current_dir().unwrap_or_default();
        let mut add = |part: &[u8]| {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        for place in [self.path.as_path(), &here] {
            add(place.as_os_str().as_encoded_bytes());
        }
        for text in self
            .overrides
            .iter()
            .chain(&self.secrets)
            .chain([&self.roots])
        {
            add(text.as_bytes());
        }
        let own = self.config_paths.iter().map(String::as_str);
        for path in own.chain(["env.yaml"]) {
            add(&std::fs::read(path).unwrap_or_default());
        }
        hasher.finalize().to_hex().chars().take(16).collect()
    }

    /// Returns the folder for the logs of single servers: the one that an override names, or else `folder`.
    pub(super) fn logs_of_servers(&self, folder: &Path) -> PathBuf {
        let own = self.overrides.iter().find_map(|text| {
            let value = text
                .trim_start_matches('+')
                .strip_prefix("nemo_gym_log_dir=")?;
            Some(value.trim_matches(['\'', '"']))
        });
        own.map_or_else(|| folder.to_owned(), PathBuf::from)
    }

    /// Masks the values of secret overrides.
    pub(super) fn hide_secrets(&self, text: &mut String) {
        let values = self.secrets.iter().filter_map(|text| text.split_once('='));
        let values = values.map(|(_, value)| value.trim_matches(['\'', '"']));
        Secrets::new(values).hide(text, false);
    }
}

/// Returns a value that Hydra reads as this text.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// The folder in which NeMo Gym prepares data for an output: beside its file of rollouts, or within the run.
pub(super) fn prepared_data(settings: &Settings) -> PathBuf {
    let file = settings.gym_output.as_deref();
    let stem = file.map(|file| Path::new(file).with_extension(""));
    let run = || settings.output.as_deref().unwrap_or_default();
    let local = stem.unwrap_or_else(|| match run() {
        // NeMo Gym writes to disks only.
        remote if remote.contains("://") => {
            Path::new("prepared").join(remote.replace([':', '/'], "_"))
        }
        local => PathBuf::from(local),
    });
    local.join("preprocessed_datasets")
}

/// Finds NeMo Gym's program: the one that is named, that of a virtual environment, or the one on the `PATH`.
fn find(named: Option<&Path>) -> Result<PathBuf, LaunchError> {
    if let Some(named) = named {
        let found = named.is_file().then(|| named.to_owned());
        let looked = format!("{} (--gym-program)", named.display());
        return found.ok_or(LaunchError::NoProgram { looked });
    }
    let found = python::programs(NAME).into_iter().next();
    found.ok_or_else(|| LaunchError::NoProgram {
        looked: "$VIRTUAL_ENV/bin, in .venv/bin here or above, or on the PATH".to_owned(),
    })
}

/// Returns the folder that an installed NeMo Gym has its configurations in, if it is in a virtual environment.
pub(crate) fn install_root(named: Option<&Path>) -> Option<PathBuf> {
    let program = find(named).ok()?;
    let libraries = program.parent()?.parent()?.join("lib").read_dir().ok()?;
    let packages = libraries.filter_map(|entry| Some(entry.ok()?.path().join("site-packages")));
    packages.into_iter().find(|packages| packages.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_hydra_and_secrets_leave_logs() {
        assert_eq!(quoted("a/b-1.yaml"), "a/b-1.yaml");
        assert_eq!(quoted("a b='c'"), "'a b=\\'c\\''");
        let program = GymProgram {
            path: "gym".into(),
            overrides: Vec::new(),
            secrets: vec!["++policy_api_key='sk-1'".to_owned()],
            config_paths: Vec::new(),
            roots: String::new(),
        };
        let mut text = "key sk-1.".to_owned();
        program.hide_secrets(&mut text);
        assert_eq!(text, "key ****.");
    }
}
