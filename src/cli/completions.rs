//! `rollstream completions`: the completion script for a shell.

use clap::CommandFactory;

use super::args::{Cli, CompletionsArgs};

/// The script as text, for the standard output.
pub fn render(args: &CompletionsArgs) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rollstream", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_learns_the_commands_and_flags() {
        for shell in clap_complete::Shell::value_variants() {
            let script = String::from_utf8(render(&CompletionsArgs { shell: *shell })).unwrap();
            assert!(script.contains("num-repeats-add-seed"), "{shell}");
            assert!(script.contains("completions"), "{shell}");
        }
    }
}
