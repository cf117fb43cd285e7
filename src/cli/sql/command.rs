use clap::ValueEnum;

use crate::error::Error;
use crate::show::Format;

/// A command that begins with `\` or `.`, in place of SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// Lists the tables, or the columns of one.
    Describe(Option<String>),
    /// Lists the functions, or explains one.
    Functions(Option<String>),
    /// Turns timing on or off, or toggles it.
    Timing(Option<bool>),
    /// Sets the format of answers, or shows it.
    Format(Option<Format>),
    /// Sets how many rows a table shows, or shows the number.
    Limit(Option<usize>),
    /// Shows one row at a time or tables again, or toggles between them.
    Record(Option<bool>),
    /// Shows the commands.
    Help,
    /// Leaves.
    Quit,
}

/// What `\help` prints.
pub(super) const HELP: &str = "\
Statements end with `;`; each reads the runs as they are now. Commands begin with \\ or . and take one line:
  \\d [TABLE]         list the tables, or the columns of one
  \\df [FUNCTION]     list the functions, or explain one
  \\x [on|off]        show one row at a time, with a line for each column
  \\format [FORMAT]   show answers as table, record, csv, json or ndjson
  \\limit [ROWS]      show at most ROWS rows of a table, 0 for all
  \\timing [on|off]   say how long each statement takes
  \\help              show this
  \\quit              leave; so does Ctrl-D
Ctrl-C drops what is being typed, or cancels the statement that is running.
";

/// Names of the commands, for completion.
pub(super) const NAMES: [&str; 8] = ["d", "df", "format", "help", "limit", "quit", "timing", "x"];

/// Returns the formats in which answers can be shown.
pub(super) fn formats() -> impl Iterator<Item = Format> {
    let formats = Format::value_variants().iter().copied();
    formats.filter(|format| format.holds_several())
}

impl Command {
    /// Parses a line, given without its first character.
    pub(super) fn parse(line: &str) -> Result<Self, Error> {
        let line = line.trim().trim_end_matches(';');
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let argument = words.next();
        if let Some(more) = words.next() {
            return Err(wrong(
                name,
                &format!("takes at most one argument, not '{more}' too"),
            ));
        }
        let text = || argument.map(str::to_owned);
        let refused = |takes: &str| wrong(name, &format!("takes {takes}"));
        let switch = || match argument {
            None => Ok(None),
            Some("on") => Ok(Some(true)),
            Some("off") => Ok(Some(false)),
            Some(_) => Err(refused("on or off")),
        };
        match name {
            "d" | "dt" | "tables" => Ok(Self::Describe(text())),
            "df" => Ok(Self::Functions(text())),
            "timing" | "timer" => switch().map(Self::Timing),
            "x" => switch().map(Self::Record),
            "format" | "mode" => match argument {
                None => Ok(Self::Format(None)),
                Some(given) => match formats().find(|format| format.name() == given) {
                    Some(format) => Ok(Self::Format(Some(format))),
                    None => {
                        let known: Vec<String> = formats().map(Format::name).collect();
                        let known = match known.split_last() {
                            Some((last, others)) => format!("{} or {last}", others.join(", ")),
                            None => String::new(),
                        };
                        Err(refused(&format!("{known} (Parquet needs -c and -o)")))
                    }
                },
            },
            "limit" => match argument.map(str::parse) {
                None => Ok(Self::Limit(None)),
                Some(Ok(rows)) => Ok(Self::Limit(Some(rows))),
                Some(Err(_)) => Err(refused("a number of rows, or 0 for all")),
            },
            "help" | "h" | "?" => Ok(Self::Help),
            "q" | "quit" | "exit" => Ok(Self::Quit),
            _ => Err(Error::Usage(format!(
                "there is no command '\\{name}'; \\help lists them"
            ))),
        }
    }
}

fn wrong(name: &str, complaint: &str) -> Error {
    Error::Usage(format!("\\{name} {complaint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let of = |line: &str| Command::parse(line).unwrap();
        assert_eq!(of("d"), Command::Describe(None));
        assert_eq!(of("d  a.b ;"), Command::Describe(Some("a.b".into())));
        assert_eq!(of("df avg"), Command::Functions(Some("avg".into())));
        assert_eq!(of("timing"), Command::Timing(None));
        assert_eq!(of("timing off"), Command::Timing(Some(false)));
        assert_eq!(of("x"), Command::Record(None));
        assert_eq!(of("format csv"), Command::Format(Some(Format::Csv)));
        assert_eq!(of("limit 0"), Command::Limit(Some(0)));
        assert_eq!((of("?"), of("q")), (Command::Help, Command::Quit));
    }

    #[test]
    fn what_is_no_command_is_said_to_be_none() {
        for (line, complaint) in [
            ("y", "'\\y'; \\help"),
            ("", "\\help"),
            ("format xml", "table, record, csv"),
            ("limit -1", "a number of rows"),
            ("timing maybe", "on or off"),
            ("d a b", "at most one argument, not 'b'"),
        ] {
            let error = Command::parse(line).unwrap_err();
            assert!(error.to_string().contains(complaint), "{line}: {error}");
        }
    }

    #[test]
    fn every_command_is_in_the_help() {
        for name in NAMES {
            assert!(Command::parse(name).is_ok());
            assert!(HELP.contains(&format!("\n  \\{name} ")), "{name}");
        }
    }
}
