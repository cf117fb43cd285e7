//! [`OptionSpec`]: the form in which options are declared, each once: those of runs in `options.rs`, those of single agents
//! in `agent_options.rs`.
//!
//! A declaration is a field of [`Settings`] or [`AgentSettings`], followed by rules, which are methods of [`OptionSpec`]:
//!
//! ```text
//! /// Longest time to open a connection
//! connect_timeout: Span = Span::from_secs(10), flag(Calls, "--connect-timeout TIME");
//! ```
//!
//! Everything else derives from it: the key in files, the environment variable, `--connect-timeout` with its place in
//! `--help` and its default, the line of `rollstream config`, the identity of a run, and "did you mean".

use std::ffi::OsStr;

use serde::Serialize;
use serde_json::Value;

use super::fields::{OptionValue, any, named, parameter_and_value};
use super::{
    AgentKind, AgentSettings, DEFAULT_ENVIRONMENT, ENVIRONMENT_PREFIX, KeyPath, MODEL_AGENT,
    Settings,
};

/// Declares a struct of options. The first paragraph of a field's documentation is the text of `--help`.
macro_rules! options {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                $key:ident: $type:ty $(= $default:expr)? $(, $rule:ident($($argument:tt)*))*;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($($serde)*)])? pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: options!(@default $($default)?),)* }
            }
        }

        impl $name {
            /// Every option, in the order of declaration.
            pub(crate) fn options() -> &'static [OptionSpec] {
                static OPTIONS: LazyLock<Vec<OptionSpec>> = LazyLock::new(|| {
                    let default = $name::default();
                    vec![$(
                        OptionSpec::new(stringify!($key), &[$($doc),*], &default.$key)
                            $(.$rule($($argument)*))*,
                    )*]
                });
                &OPTIONS
            }

            /// Takes every option for which `is_taken` returns true from `other`.
            #[allow(dead_code, reason = "options of agents are never taken")]
            pub(crate) fn take(self, other: Self, is_taken: impl Fn(&OptionSpec) -> bool) -> Self {
                let mut options = Self::options().iter();
                let mut is_taken = || options.next().is_some_and(&is_taken);
                Self { $($key: if is_taken() { other.$key } else { self.$key },)* }
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}
pub(super) use options;

/// One option of a run, or of an agent.
#[derive(Debug)]
pub(crate) struct OptionSpec {
    /// The key in files. The environment variable is `ROLLSTREAM_` and the key in capitals.
    pub key: &'static str,
    /// The form of its values.
    pub kind: Kind,
    /// Its default.
    pub default: Value,
    /// Its flags on the command line, in the order of `--help`.
    pub flags: Vec<Flag>,
    /// Its name in NeMo Gym, if that differs from the key. For an option that is on by default, it is the opposite.
    pub gym_name: Option<&'static str>,
    /// NeMo Gym's environment variable for it.
    pub gym_variable: Option<(&'static str, ReadVariable)>,
    /// Whether it is part of the identity of a run, which a resume must not change.
    pub identity: Identity,
    /// The kinds of agents that take it; empty for all.
    pub kinds: &'static [AgentKind],
    help: String,
    check: Check,
    named_check: Check,
}

/// The form of an option's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text; `007` and `true` stay what they are.
    Text,
    /// A list of texts.
    Texts,
    /// A number or a truth value.
    Scalar,
    /// A number for all, or a mapping that a later layer replaces as a whole.
    Repeats,
    /// A mapping with values of known kinds.
    Table,
    /// A mapping, or anything under it, that is not interpreted here.
    Tree,
}

/// Whether an option is part of the identity of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// It is no part of it.
    No,
    /// Its value is part of it.
    Value,
    /// Its content is part of it: a digest of files, or the settings below it.
    Content,
    /// Its value is part of it, unless it is the default. Only rules of NeMo Gym with routing know the option.
    Routing,
}

/// One flag of an option.
#[derive(Debug, Clone)]
pub(crate) struct Flag {
    /// The heading in `--help`.
    pub group: Group,
    /// The long form, without `--`.
    pub name: &'static str,
    /// The short form.
    pub short: Option<char>,
    /// The name of its value; empty for a switch.
    pub value: &'static str,
    /// The text of `--help`.
    pub help: String,
    /// The setting that the flag sets.
    pub target: Target,
    /// Checks a value at once. Possible secrets are only checked when the settings are resolved, since clap's errors
    /// repeat the value.
    pub check: Check,
    /// The flag that it follows in `--help`, if that is not the order of declaration.
    after: Option<&'static str>,
}

/// Reads the value of an environment variable of NeMo Gym; none means that it is not set.
pub(crate) type ReadVariable = fn(&OsStr) -> Option<Value>;

/// Checks the text of a value.
pub(crate) type Check = fn(&str) -> Result<(), String>;

/// The headings of `--help`, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    Tasks,
    Model,
    Agents,
    GymServers,
    Calls,
    Failures,
    Run,
}

/// The setting that a flag sets, by the key of its option.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// The value at the path.
    Value(KeyPath),
    /// A list; every use of the flag adds one item.
    Items(KeyPath),
    /// A text that is taken as it is, where values of other kinds are possible.
    Text(KeyPath),
    /// The text of a file, whose path is the flag's value.
    File(KeyPath),
    /// A truth value, without a text.
    Switch(KeyPath, bool),
    /// `NAME=VALUE` sets `NAME` below the path.
    Named(KeyPath),
    /// `NAME=VALUE` sets `agents.NAME.KEY`.
    OfAgent(&'static str),
    /// `responses_create_params.KEY=VALUE` sets just that.
    Parameter,
}

impl OptionSpec {
    /// Creates an option without rules. `docs` are the lines of its documentation.
    pub(super) fn new<T: OptionValue + Serialize>(
        key: &'static str,
        docs: &[&str],
        default: &T,
    ) -> Self {
        let lines = docs.iter().map(|line| line.trim());
        let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
        Self {
            key,
            kind: T::KIND,
            default: serde_json::to_value(default).unwrap_or_default(),
            flags: Vec::new(),
            gym_name: None,
            gym_variable: None,
            identity: Identity::No,
            kinds: &[],
            help: paragraph.join(" "),
            check: T::CHECK.unwrap_or(any),
            named_check: named::<T>,
        }
    }

    /// Rule: it has a flag, written as `-s --long VALUE`.
    pub(super) fn flag(self, group: Group, form: &'static str) -> Self {
        let path = KeyPath::new([self.key]);
        let target = match (self.kind, &self.default) {
            (_, Value::Bool(_)) => Target::Switch(path, true),
            (Kind::Texts, _) => Target::Items(path),
            (Kind::Table | Kind::Tree, _) => Target::Named(path),
            _ => Target::Value(path),
        };
        let (help, check) = (self.help_with_default(), self.check);
        self.push(group, form, help, target, check)
    }

    /// Rule: it has a flag that turns it off, with this text of `--help`.
    pub(super) fn off_flag(self, group: Group, form: &'static str, help: &str) -> Self {
        let target = Target::Switch(KeyPath::new([self.key]), false);
        let check = self.check;
        self.push(group, form, help.to_owned(), target, check)
    }

    /// Rule: it has a flag `--agent-...` that sets it for one agent.
    pub(super) fn agent_flag(self, form: &'static str) -> Self {
        let (help, check) = (self.help.clone(), self.named_check);
        let target = Target::OfAgent(self.key);
        self.push(Group::Agents, form, help, target, check)
    }

    /// Rule: it has a flag that sets it for the agent of `--model-url`.
    pub(super) fn model_flag(self, form: &'static str) -> Self {
        let path = KeyPath::new(["agents", MODEL_AGENT, self.key]);
        let target = if self.kind == Kind::Texts {
            Target::Items(path)
        } else {
            Target::Value(path)
        };
        let help = self.help.clone();
        self.push(Group::Model, form, help, target, any)
    }

    /// Rule: it has a flag for the check of the agent of `--model-url`; `path` leads from the check to the setting.
    pub(super) fn check_flag(
        self,
        form: &'static str,
        path: &[&str],
        target: fn(KeyPath) -> Target,
        help: &str,
    ) -> Self {
        let root = ["agents", MODEL_AGENT, self.key, DEFAULT_ENVIRONMENT];
        let target = target(KeyPath::new(root.iter().chain(path).copied()));
        let check = if matches!(target, Target::Named(_)) {
            self.check
        } else {
            any
        };
        self.push(Group::Model, form, help.to_owned(), target, check)
    }

    /// Rule: its flag sets single request parameters.
    pub(super) fn parameter_flag(self, group: Group, form: &'static str) -> Self {
        let help = self.help.clone();
        let check = |text: &str| parameter_and_value(text).map(|_| ());
        self.push(group, form, help, Target::Parameter, check)
    }

    /// Rule: it has a further flag, which sets the value of the same name below it.
    pub(super) fn short_flag<T: OptionValue>(self, group: Group, form: &'static str, _: T) -> Self {
        let words = form.trim_start_matches('-').split_once(' ');
        let (name, value) = words.unwrap_or((form, "VALUE"));
        let path = KeyPath::new([self.key.to_owned(), name.replace('-', "_")]);
        let help = format!("Short for --set {path}={value}");
        let check = T::CHECK.unwrap_or(any);
        self.push(group, form, help, Target::Value(path), check)
    }

    /// Adds a flag, written as `-s --long VALUE`.
    fn push(
        mut self,
        group: Group,
        form: &'static str,
        help: String,
        target: Target,
        check: Check,
    ) -> Self {
        let word = |sign: &str| form.split(' ').find_map(|word| word.strip_prefix(sign));
        self.flags.push(Flag {
            group,
            name: word("--").unwrap_or(form),
            short: word("-")
                .and_then(|short| short.chars().next())
                .filter(|c| *c != '-'),
            value: form
                .split(' ')
                .find(|word| !word.starts_with('-'))
                .unwrap_or(""),
            help,
            target,
            check,
            after: None,
        });
        self
    }

    /// Rule: another check of its flag than that of its type.
    pub(super) fn checked(mut self, check: Check) -> Self {
        self.flags.iter_mut().for_each(|flag| flag.check = check);
        self
    }

    /// Rule: its flag follows this one in `--help`.
    pub(super) fn after(mut self, flag: &'static str) -> Self {
        self.flags.iter_mut().for_each(|own| own.after = Some(flag));
        self
    }

    /// Rule: this is its name in NeMo Gym.
    pub(super) fn gym(mut self, name: &'static str) -> Self {
        self.gym_name = Some(name);
        self
    }

    /// Rule: NeMo Gym has an environment variable for it.
    pub(super) fn gym_variable(mut self, name: &'static str, read: ReadVariable) -> Self {
        self.gym_variable = Some((name, read));
        self
    }

    /// Rule: it is part of the identity of a run.
    pub(super) fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Rule: only agents of these kinds take it.
    pub(super) fn only(mut self, kinds: &'static [AgentKind]) -> Self {
        self.kinds = kinds;
        self
    }

    /// Returns the environment variable.
    pub(crate) fn variable(&self) -> String {
        ENVIRONMENT_PREFIX.to_owned() + &self.key.to_ascii_uppercase()
    }

    /// Returns the text of `--help`, with the default at its end or in place of `{}` in the text.
    fn help_with_default(&self) -> String {
        let default = match &self.default {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return self.help.clone(),
        };
        if self.help.contains("[default") {
            return self.help.replace("{}", &default);
        }
        format!("{} [default: {default}]", self.help)
    }
}

/// Returns all flags of runs and agents, in the order of `--help`.
pub(crate) fn flags() -> Vec<&'static Flag> {
    let flags = |option: &'static OptionSpec| option.flags.iter();
    let mut all: Vec<&Flag> = Vec::new();
    for option in Settings::options() {
        all.extend(flags(option));
        if option.key == "agents" {
            all.extend(AgentSettings::options().iter().flat_map(flags));
        }
    }
    all.sort_by_key(|flag| flag.group);
    for flag in all.clone() {
        if let Some(before) = flag.after {
            all.retain(|other| other.name != flag.name);
            let at = all.iter().position(|other| other.name == before);
            all.insert(at.map_or(all.len(), |at| at + 1), flag);
        }
    }
    all
}
