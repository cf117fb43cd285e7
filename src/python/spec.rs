//! [`Spec`]: what follows the colon of a field, in Python's format mini-language.

use super::template::{FillError, refused};

/// Wider or more precise fields are refused, so that a template cannot ask for memory without bound.
const LARGEST: usize = u16::MAX as usize;

/// A parsed format specification: `[[fill]align][sign][z][#][0][width][grouping][.precision][type]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spec {
    pub fill: char,
    pub align: Align,
    pub sign: Option<char>,
    /// Print a negative zero as zero.
    pub no_negative_zero: bool,
    pub alternate: bool,
    pub width: usize,
    /// `,` or `_`.
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
    Center,
    /// Padding goes between the sign and the digits.
    AfterSign,
}

impl Align {
    fn of(token: char) -> Option<Self> {
        match token {
            '<' => Some(Self::Left),
            '>' => Some(Self::Right),
            '^' => Some(Self::Center),
            '=' => Some(Self::AfterSign),
            _ => None,
        }
    }
}

impl Spec {
    /// Parses the specification for a value of Python type `type_name`, which aligns as `natural` by default.
    pub fn parse(text: &str, natural: Align, type_name: &str) -> Result<Self, FillError> {
        let characters: Vec<char> = text.chars().collect();
        let mut rest = characters.as_slice();
        let mut fill = None;
        let mut align = None;
        match rest {
            [first, token, tail @ ..] if Align::of(*token).is_some() => {
                (fill, align, rest) = (Some(*first), Align::of(*token), tail);
            }
            [token, tail @ ..] if Align::of(*token).is_some() => {
                (align, rest) = (Align::of(*token), tail)
            }
            _ => {}
        }
        let sign = take_any(&mut rest, &['+', '-', ' ']);
        let no_negative_zero = take_any(&mut rest, &['z']).is_some();
        let alternate = take_any(&mut rest, &['#']).is_some();
        let zero = fill.is_none() && take_any(&mut rest, &['0']).is_some();
        let padding = if zero && natural == Align::Right {
            Align::AfterSign
        } else {
            natural
        };
        let width = take_number(&mut rest)?.unwrap_or(0);
        let grouping = take_any(&mut rest, &[',', '_']);
        if let (Some(first), Some(second)) = (grouping, take_any(&mut rest, &[',', '_'])) {
            return refused(if first == second {
                format!("Cannot specify '{first}' with '{second}'.")
            } else {
                "Cannot specify both ',' and '_'.".to_owned()
            });
        }
        let mut precision = None;
        if take_any(&mut rest, &['.']).is_some() {
            precision = take_number(&mut rest)?;
            if precision.is_none() {
                return refused("Format specifier missing precision");
            }
        }
        let kind = match rest {
            [] => None,
            [kind] => Some(*kind),
            _ => {
                return refused(format!(
                    "Invalid format specifier '{text}' for object of type '{type_name}'"
                ));
            }
        };
        Ok(Self {
            fill: fill.unwrap_or(if zero { '0' } else { ' ' }),
            align: align.unwrap_or(padding),
            sign,
            no_negative_zero,
            alternate,
            width,
            grouping,
            precision,
            kind,
        })
    }

    /// Refuses this specification's type.
    pub fn refuse_kind(&self, type_name: &str) -> Result<String, FillError> {
        let kind = self.kind.unwrap_or(' ');
        refused(format!(
            "Unknown format code '{kind}' for object of type '{type_name}'"
        ))
    }

    /// Pads a text that has no sign.
    pub fn pad(&self, text: &str) -> String {
        self.pad_after("", text)
    }

    /// Pads a number whose sign and base prefix are in `prefix`.
    pub fn pad_after(&self, prefix: &str, text: &str) -> String {
        let missing = self
            .width
            .saturating_sub(prefix.chars().count() + text.chars().count());
        let padding = |count: usize| self.fill.to_string().repeat(count);
        match self.align {
            Align::Left => format!("{prefix}{text}{}", padding(missing)),
            Align::Right => format!("{}{prefix}{text}", padding(missing)),
            Align::Center => {
                let before = missing / 2;
                padding(before) + prefix + text + &padding(missing - before)
            }
            Align::AfterSign => format!("{prefix}{}{text}", padding(missing)),
        }
    }

    /// The sign that a number is shown with.
    pub fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        }
    }

    /// Groups whole digits by `size`, and where zeros fill the width, makes them part of the groups. `around` is
    /// the width that sign, prefix and fraction take.
    pub fn grouped(&self, digits: &str, size: usize, around: usize) -> String {
        let Some(separator) = self.grouping else {
            return digits.to_owned();
        };
        let fills = self.fill == '0' && self.align == Align::AfterSign;
        let wanted = usize::from(fills) * self.width.saturating_sub(around);
        let mut count = digits.len();
        while count + count.saturating_sub(1) / size < wanted {
            count += 1;
        }
        let zeros = std::iter::repeat_n('0', count - digits.len());
        let mut grouped = String::with_capacity(count + count / size);
        for (position, digit) in zeros.chain(digits.chars()).enumerate() {
            if position > 0 && (count - position).is_multiple_of(size) {
                grouped.push(separator);
            }
            grouped.push(digit);
        }
        grouped
    }

    /// Formats a string.
    pub fn format_string(text: &str, spec: &str) -> Result<String, FillError> {
        let spec = Self::parse(spec, Align::Left, "str")?;
        if !matches!(spec.kind, None | Some('s')) {
            return spec.refuse_kind("str");
        }
        let unfit = [
            (spec.sign == Some(' '), "Space"),
            (spec.sign.is_some(), "Sign"),
            (spec.no_negative_zero, "Negative zero coercion (z)"),
            (spec.alternate, "Alternate form (#)"),
            (spec.align == Align::AfterSign, "'=' alignment"),
        ];
        if let Some((_, unfit)) = unfit.into_iter().find(|(is_given, _)| *is_given) {
            return refused(format!("{unfit} not allowed in string format specifier"));
        }
        if let Some(separator) = spec.grouping {
            return refused(format!("Cannot specify '{separator}' with 's'."));
        }
        match spec.precision {
            Some(longest) => Ok(spec.pad(&text.chars().take(longest).collect::<String>())),
            None => Ok(spec.pad(text)),
        }
    }
}

fn take_any(rest: &mut &[char], wanted: &[char]) -> Option<char> {
    let (first, tail) = rest.split_first()?;
    wanted.contains(first).then(|| {
        *rest = tail;
        *first
    })
}

fn take_number(rest: &mut &[char]) -> Result<Option<usize>, FillError> {
    let mut number = None;
    while let Some((digit, tail)) = rest
        .split_first()
        .and_then(|(first, tail)| Some((first.to_digit(10)?, tail)))
    {
        *rest = tail;
        let larger = number.unwrap_or(0) * 10 + digit as usize;
        if larger > LARGEST {
            return refused(format!(
                "a width or precision in a format specifier can be at most {LARGEST}"
            ));
        }
        number = Some(larger);
    }
    Ok(number)
}
