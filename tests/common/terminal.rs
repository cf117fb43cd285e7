use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::Instant;

use nix::pty::{Winsize, openpty};

use super::PATIENCE;
use super::program::Guard;

/// The program at work on a terminal of its own; killed if the test ends before it.
pub struct Terminal {
    child: Guard,
    keyboard: File,
    screen: Arc<(Mutex<Screen>, Condvar)>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// Starts a program on a terminal of so many columns.
    pub fn start(program: &Command, columns: u16) -> Self {
        let size = Winsize {
            ws_row: 40,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pair = openpty(Some(&size), None).unwrap();
        // The terminal controls the program, so that Ctrl-C interrupts it.
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(program.get_program())
            .args(program.get_args());
        command.env_clear().env("TERM", "xterm");
        for (name, value) in program.get_envs() {
            command.envs(value.map(|value| (name, value)));
        }
        command.current_dir(program.get_current_dir().unwrap());
        let slave = || Stdio::from(pair.slave.try_clone().unwrap());
        let child = command
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        drop(command);
        let keyboard = File::from(pair.master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new((Mutex::new(Screen::new(columns.into())), Condvar::new()));
        let seen = Arc::clone(&screen);
        let reader = spawn(move || {
            let mut bytes = [0; 4096];
            let mut begun = Vec::new();
            // The end of a terminal is an error.
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                begun.extend_from_slice(&bytes[..read]);
                let whole = begun
                    .utf8_chunks()
                    .next()
                    .map_or(0, |chunk| chunk.valid().len());
                let rest = begun.split_off(whole);
                let text = String::from_utf8(std::mem::replace(&mut begun, rest)).unwrap();
                seen.0.lock().unwrap().print(&text);
                seen.1.notify_all();
            }
        });
        Self {
            child: Guard(child),
            keyboard,
            screen,
            reader,
        }
    }

    /// Waits until the screen shows `text`, and gives all that it shows.
    #[track_caller]
    pub fn until_it_shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is as wanted, and gives all that it shows.
    #[track_caller]
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut screen = self.screen.0.lock().unwrap();
        loop {
            let shown = screen.text();
            if wanted(&shown) {
                return shown;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never '{what}', but:\n{shown}");
            screen = self.screen.1.wait_timeout(screen, left).unwrap().0;
        }
    }

    /// Presses Ctrl-C between two drawings of the bars: while one is drawn, the `^C` that the terminal shows breaks a line.
    pub fn interrupt(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut screen = self.screen.0.lock().unwrap();
        while screen.column != 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "the cursor never rests at the beginning of a line"
            );
            screen = self.screen.1.wait_timeout(screen, left).unwrap().0;
        }
        drop(screen);
        self.press("\x03");
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end; gives the exit code and what the screen shows then.
    pub fn end(mut self) -> (Option<i32>, String) {
        let code = self.child.0.wait().unwrap().code();
        self.reader.join().unwrap();
        let shown = self.screen.0.lock().unwrap().text();
        (code, shown)
    }
}

/// Stands at the end of a line that was too long for the terminal.
pub const BROKEN: char = '↵';

/// What a terminal shows. It never scrolls.
struct Screen {
    lines: Vec<Vec<char>>,
    columns: usize,
    row: usize,
    column: usize,
    /// An escape sequence that is not complete.
    escape: String,
}

impl Screen {
    fn new(columns: usize) -> Self {
        Self {
            lines: vec![Vec::new()],
            columns,
            row: 0,
            column: 0,
            escape: String::new(),
        }
    }

    fn print(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                _ if !self.escape.is_empty() => self.escape(c),
                '\x1b' => self.escape.push(c),
                '\r' => self.column = 0,
                '\n' => self.row += 1,
                c => {
                    // A line that is full breaks before the next character, and not sooner.
                    if self.column == self.columns {
                        // Lines of the progress display are filled with spaces.
                        if self.line().last().is_some_and(|last| *last != ' ') {
                            self.line().push(BROKEN);
                        }
                        (self.row, self.column) = (self.row + 1, 0);
                    }
                    let column = self.column;
                    let line = self.line();
                    line.resize(line.len().max(column + 1), ' ');
                    line[column] = c;
                    self.column += 1;
                }
            }
        }
    }

    fn line(&mut self) -> &mut Vec<char> {
        let lines = self.lines.len().max(self.row + 1);
        self.lines.resize(lines, Vec::new());
        &mut self.lines[self.row]
    }

    fn escape(&mut self, c: char) {
        self.escape.push(c);
        if c == '[' || !c.is_ascii_alphabetic() {
            return;
        }
        let sequence = std::mem::take(&mut self.escape);
        let number = sequence[2..sequence.len() - 1].parse::<usize>();
        let count = number.clone().unwrap_or(1);
        match c {
            'A' => self.row -= count.min(self.row),
            'B' => self.row += count,
            'C' => self.column += count,
            'D' => self.column -= count.min(self.column),
            'K' if number == Ok(2) => self.line().clear(),
            'K' => {
                let column = self.column;
                self.line().truncate(column);
            }
            'J' => {
                let (row, column) = (self.row, self.column);
                self.line().truncate(column);
                self.lines.truncate(row + 1);
            }
            // Colours, and whether the cursor is seen.
            'm' | 'h' | 'l' => {}
            _ => panic!("this terminal does not know {sequence:?}"),
        }
    }

    fn text(&self) -> String {
        let lines = self
            .lines
            .iter()
            .map(|line| line.iter().collect::<String>());
        let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n").trim_end().to_owned()
    }
}
