//! `rollstream config`: prints the resolved settings and the origin of each.

use std::fmt::Write;

use serde_json::{Value, json};

use super::collect::CollectArgs;
use crate::config::{ConfigError, Resolved};

/// Returns the settings as text for stdout: TOML that `--config` can read, or JSON.
///
/// # Errors
/// If the settings cannot be resolved.
pub fn render(args: &CollectArgs) -> Result<String, ConfigError> {
    let resolved = args.resolve()?;
    if args.shown.display.json {
        return Ok(to_json(&resolved));
    }
    Ok(to_toml(&resolved))
}

/// Formats one `key = value   # origin` per line. Unset settings and `null`, which TOML lacks, become comments.
pub fn to_toml(resolved: &Resolved) -> String {
    let lines = resolved.entries().into_iter().map(|(key, value, origin)| {
        let setting = match (&value, toml::Value::try_from(&value)) {
            (Value::Null, _) if key.keys().len() == 1 => format!("# {key} is not set"),
            (_, Ok(toml)) => format!("{key} = {}", one_line_toml(&value, &toml)),
            (_, Err(_)) => format!("# {key} = {value}"),
        };
        (setting, origin.to_string().replace(char::is_control, " "))
    });
    let lines: Vec<(String, String)> = lines.collect();
    let widths = lines.iter().map(|(setting, _)| setting.chars().count());
    // A single long value must not push all origins off the screen.
    let width = widths.filter(|width| *width <= 60).max().unwrap_or(0);
    let mut text = String::new();
    for (setting, origin) in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{setting:width$}   # {origin}");
    }
    text
}

/// Formats `{key: {value, source}}`, with a line end.
pub fn to_json(resolved: &Resolved) -> String {
    let entries = resolved.entries().into_iter();
    let entries = entries.map(|(key, value, origin)| {
        let entry = json!({"value": value, "source": origin.to_string()});
        (key.to_string(), entry)
    });
    format!("{:#}\n", Value::Object(entries.collect()))
}

/// Keeps a value on one line: a text with line ends is written as JSON, whose escapes are valid in TOML too.
fn one_line_toml(value: &Value, toml: &toml::Value) -> String {
    match (toml.to_string(), value) {
        (text, Value::String(_)) if text.contains('\n') => value.to_string(),
        (text, _) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn resolve(options: &[&str]) -> Resolved {
        let line = ["rollstream", "config"].iter().chain(options);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Config(args) => args.sweep.layers().resolve().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_printed_as_toml_is_a_configuration() {
        let resolved = resolve(&[
            "--input=a.jsonl",
            "--input=b.jsonl",
            "--num-repeats=a=2,_default=1",
            "--agent-url=v1.5=http://h:1",
            "--header-env=X-Key=KEY",
            "--set=responses_create_params.temperature=1.0",
            "--set=responses_create_params.stop=[\"a\\nb\", \"'\"]",
            "--set=responses_create_params.metadata.note='two\nlines'",
            "--set=responses_create_params.instructions=one\ntwo # \"three\"",
            "--read-timeout=90",
            "--part-size=1000",
            "+sim={median: 2, tags: [{a: 1}]}",
        ]);
        let text = to_toml(&resolved);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("again.toml");
        std::fs::write(&path, &text).unwrap();
        let again = crate::config::Layers::new().file(&path).resolve().unwrap();
        assert_eq!(again.settings, resolved.settings, "{text}");
        for (setting, origin) in [
            ("input = [\"a.jsonl\", \"b.jsonl\"] ", "# --input"),
            ("agents.\"v1.5\".url = \"http://h:1\" ", "# --agent-url"),
            ("read_timeout = \"1m 30s\" ", "# --read-timeout"),
            ("part_size = \"1000B\" ", "# --part-size"),
            ("concurrency = 256 ", "# default"),
            ("sim.median = 2 ", "# +sim"),
            ("# limit is not set ", "# default"),
        ] {
            let found = text
                .lines()
                .any(|line| line.starts_with(setting) && line.ends_with(origin));
            assert!(found, "{setting}: {text}");
        }
    }

    #[test]
    fn null_is_a_comment_in_toml_and_itself_in_json() {
        let resolved = resolve(&["--set=responses_create_params.seed=null"]);
        let text = to_toml(&resolved);
        assert!(
            text.contains("\n# responses_create_params.seed = null "),
            "{text}"
        );
        assert!(text.parse::<toml::Table>().is_ok(), "{text}");
        let json: Value = serde_json::from_str(&to_json(&resolved)).unwrap();
        assert_eq!(
            json["responses_create_params.seed"],
            json!({"value": null, "source": "--set"})
        );
        assert_eq!(
            json["concurrency"],
            json!({"value": 256, "source": "default"})
        );
    }
}
