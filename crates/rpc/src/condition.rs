//! The condition of a trigger, as written in `memscoped --snapshot-when` and `memscope-ctl trigger add`.
//!
//! Owns: the grammar, its errors, and the one form in which a condition is printed. Refuses: to know how a condition is
//! watched; that is the daemon's work.
//!
//! ```text
//! condition = "oom" [on]
//!           | ("allocated" | "reserved") ">" bytes [on]
//!           | "fragmentation" ">" share ["with" "reserved" ">" bytes] [on]
//!           | "growth" ">" bytes "in" duration [on]
//!           | "step" "=" number
//!           | "every" number ("step" | "steps")
//! on        = "on" "device" number
//! ```

mod error;
mod scan;

pub use error::ConditionError;

use memscope_units::{byte_unit, scaled, time_unit_ns};
use scan::{Scanner, Token};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Default of `with reserved >`: with fewer reserved bytes fragmentation does not matter.
const FRAGMENTS_FROM: u64 = 1 << 30;
/// Shortest and longest time over which growth can be watched.
const SHORTEST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 30 * 86_400 * 1_000_000_000;
/// Largest ordinal of a device: PyTorch's device index is a signed byte.
const MOST_DEVICES: u64 = 127;
const METRICS: &str = "oom, allocated, reserved, fragmentation, growth, step or every";
/// Largest number of a step: more than any training makes.
const MOST_STEPS: u64 = 1_000_000_000_000;

/// Condition of a trigger: what is watched, and on which device. Parsed from text, and printed as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Condition {
    /// The quantity that is watched, with its threshold.
    pub metric: Metric,
    /// Ordinal of the device; `None`: every device, each by itself.
    pub device: Option<i32>,
}

/// The quantity that a condition watches, with its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// The allocator reports that it is out of memory.
    Oom,
    /// The allocated bytes rise above a threshold.
    Allocated {
        /// Threshold in bytes.
        above: u64,
    },
    /// The reserved bytes rise above a threshold.
    Reserved {
        /// Threshold in bytes.
        above: u64,
    },
    /// The pool takes more memory from the driver although more than a share of its reserved bytes is free.
    Fragmentation {
        /// Threshold of the free share, in hundredths of a percent, 1 to 9,999.
        above: u64,
        /// The condition holds only while more than this many bytes are reserved.
        reserved_above: u64,
    },
    /// The floor of the allocated bytes rises by more than a threshold.
    Growth {
        /// Threshold in bytes.
        above: u64,
        /// Time within which the floor must rise, in nanoseconds.
        within_ns: u64,
    },
    /// A step of the process ends.
    Step {
        /// Number of the step, counted from the attach, from 1.
        number: u64,
    },
    /// A step of the process ends whose number is a multiple of this one.
    Every {
        /// Steps from one firing to the next one.
        steps: u64,
    },
}

impl Metric {
    /// The word for it in the grammar.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Metric::Oom => "oom",
            Metric::Allocated { .. } => "allocated",
            Metric::Reserved { .. } => "reserved",
            Metric::Fragmentation { .. } => "fragmentation",
            Metric::Growth { .. } => "growth",
            Metric::Step { .. } => "step",
            Metric::Every { .. } => "every",
        }
    }

    /// Whether it is about the steps of a process, which no device has by itself.
    #[must_use]
    pub fn is_of_steps(&self) -> bool {
        matches!(self, Metric::Step { .. } | Metric::Every { .. })
    }
}

fn wrong<T>(
    column: usize,
    what: impl Into<String>,
    hint: impl Into<String>,
) -> Result<T, ConditionError> {
    Err(ConditionError {
        column,
        what: what.into(),
        hint: hint.into(),
    })
}

impl std::str::FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Condition, ConditionError> {
        let mut scanner = Scanner::new(text)?;
        let metric = metric(&mut scanner)?;
        let (column, _) = scanner.peek();
        let device = on_device(&mut scanner)?;
        if device.is_some() && metric.is_of_steps() {
            return wrong(
                column,
                "steps are the process's, not a device's",
                "leave out `on device`",
            );
        }
        let (column, left) = scanner.peek();
        match left {
            None => Ok(Condition { metric, device }),
            Some(Token::Word("in")) => wrong(
                column,
                format!(
                    "{} is watched at every moment, not over a time",
                    metric.word()
                ),
                "only growth takes `in DURATION`",
            ),
            Some(Token::Word("with")) => wrong(
                column,
                format!("{} takes no second condition", metric.word()),
                "only fragmentation takes `with reserved > BYTES`",
            ),
            Some(left) => wrong(
                column,
                format!("{left} is too much"),
                match device {
                    None => "the condition is whole before it; `on device N` may follow",
                    Some(_) => "the condition is whole before it",
                },
            ),
        }
    }
}

fn metric(scanner: &mut Scanner<'_>) -> Result<Metric, ConditionError> {
    let (column, token) = scanner.next();
    let name = match token {
        Some(Token::Word(name)) => name.to_ascii_lowercase(),
        Some(other) => return wrong(column, format!("{other} is nothing to watch"), one_of()),
        None => return wrong(column, "there is no condition", one_of()),
    };
    match name.as_str() {
        "oom" => {
            if let (column, Some(Token::Sign(sign))) = scanner.peek() {
                return wrong(
                    column,
                    format!("{sign:?} does not fit: oom has no value"),
                    "write oom, or oom on device N",
                );
            }
            Ok(Metric::Oom)
        }
        "allocated" => {
            let above = greater(scanner, "allocated", bytes)?;
            Ok(Metric::Allocated { above })
        }
        "reserved" => {
            let above = greater(scanner, "reserved", bytes)?;
            Ok(Metric::Reserved { above })
        }
        "fragmentation" => {
            let above = greater(scanner, "fragmentation", share)?;
            let reserved_above = with_reserved(scanner)?.unwrap_or(FRAGMENTS_FROM);
            Ok(Metric::Fragmentation {
                above,
                reserved_above,
            })
        }
        "growth" => {
            let above = greater(scanner, "growth", bytes)?;
            let within_ns = within(scanner)?;
            Ok(Metric::Growth { above, within_ns })
        }
        "step" => {
            let (column, token) = scanner.next();
            if !matches!(token, Some(Token::Sign("=" | "=="))) {
                return wrong(column, missing(token, "="), STEP_HINT);
            }
            let number = steps(scanner)?;
            Ok(Metric::Step { number })
        }
        "every" => {
            let steps = steps(scanner)?;
            let (column, token) = scanner.next();
            match token {
                Some(Token::Word(word))
                    if ["step", "steps"].contains(&word.to_ascii_lowercase().as_str()) =>
                {
                    Ok(Metric::Every { steps })
                }
                _ => wrong(column, missing(token, "`steps`"), STEP_HINT),
            }
        }
        _ => wrong(column, format!("{name:?} is nothing to watch"), one_of()),
    }
}

fn one_of() -> String {
    format!("write {METRICS}, as in: reserved > 30GiB")
}

const STEP_HINT: &str = "as in: step = 100, or: every 500 steps";

/// Parses a number of steps.
fn steps(scanner: &mut Scanner<'_>) -> Result<u64, ConditionError> {
    let (column, token) = scanner.next();
    let Some(Token::Number(number)) = token else {
        return wrong(column, missing(token, "a number of steps"), STEP_HINT);
    };
    match number.parse() {
        Ok(number @ 1..=MOST_STEPS) => Ok(number),
        _ => wrong(
            column,
            format!("{number} is no number of a step"),
            "they are counted from 1",
        ),
    }
}

fn greater(
    scanner: &mut Scanner<'_>,
    name: &str,
    value: fn(&mut Scanner<'_>, &str) -> Result<u64, ConditionError>,
) -> Result<u64, ConditionError> {
    let (column, token) = scanner.next();
    match token {
        Some(Token::Sign(">")) => value(scanner, name),
        Some(other) => wrong(
            column,
            format!("{other} cannot stand after {name}"),
            format!("only > can, as in: {}", example(name)),
        ),
        None => wrong(
            column,
            format!("{name} needs a value"),
            format!(
                "write '{}', in quotes: a shell takes > for a file",
                example(name)
            ),
        ),
    }
}

fn example(name: &str) -> &'static str {
    match name {
        "allocated" => "allocated > 20GiB",
        "fragmentation" => "fragmentation > 40%",
        "growth" => "growth > 2GiB in 10m",
        _ => "reserved > 30GiB",
    }
}

/// Parses a number of bytes, with or without a unit.
fn bytes(scanner: &mut Scanner<'_>, name: &str) -> Result<u64, ConditionError> {
    let (column, token) = scanner.next();
    let Some(Token::Number(number)) = token else {
        return wrong(
            column,
            missing(token, "a number of bytes"),
            format!("as in: {}", example(name)),
        );
    };
    let unit = match scanner.peek() {
        (_, Some(Token::Word(word))) if !is_keyword(word) => {
            let (column, _) = scanner.next();
            match (byte_unit(word), word.to_ascii_lowercase().as_str()) {
                (Some(unit), _) => unit,
                (None, "k" | "m" | "g" | "t") => {
                    return wrong(
                        column,
                        format!("{word:?} can mean two units"),
                        format!("write {word}iB (1024) or {word}B (1000)"),
                    );
                }
                (None, _) => {
                    return wrong(
                        column,
                        format!("{word:?} is no unit of bytes"),
                        "B, KiB, MiB, GiB, TiB, KB, MB, GB and TB are",
                    );
                }
            }
        }
        (column, Some(Token::Sign("%"))) => {
            return wrong(
                column,
                format!("{name} is watched in bytes"),
                "only fragmentation is a share",
            );
        }
        _ => 1,
    };
    match scaled(number, unit) {
        Some(0) => wrong(
            column,
            "zero is no threshold",
            format!("as in: {}", example(name)),
        ),
        Some(value) if value <= i64::MAX as u64 => Ok(value),
        _ => wrong(column, "no device has so many bytes", "give fewer"),
    }
}

/// Parses a share such as `40%` or `0.4`. Returns hundredths of a percent.
fn share(scanner: &mut Scanner<'_>, name: &str) -> Result<u64, ConditionError> {
    let hint = "give a share between 0% and 100%, as in: fragmentation > 40%";
    let (column, token) = scanner.next();
    let Some(Token::Number(number)) = token else {
        return wrong(column, missing(token, "a share"), hint);
    };
    let scale = match scanner.peek() {
        (_, Some(Token::Sign("%"))) => {
            scanner.next();
            100
        }
        (column, Some(Token::Word(word))) if !is_keyword(word) => {
            return wrong(column, format!("{name} is a share, not {word:?}"), hint);
        }
        _ => 10_000,
    };
    match scaled(number, scale) {
        Some(value @ 1..10_000) => Ok(value),
        _ => wrong(
            column,
            format!("{number} is no share of what is reserved"),
            hint,
        ),
    }
}

fn with_reserved(scanner: &mut Scanner<'_>) -> Result<Option<u64>, ConditionError> {
    if !matches!(scanner.peek(), (_, Some(Token::Word(word))) if word.eq_ignore_ascii_case("with"))
    {
        return Ok(None);
    }
    scanner.next();
    let (column, token) = scanner.next();
    match token {
        Some(Token::Word(word)) if word.eq_ignore_ascii_case("reserved") => {
            greater(scanner, "reserved", bytes).map(Some)
        }
        _ => wrong(
            column,
            missing(token, "reserved"),
            "only `with reserved > BYTES` can follow, as in: fragmentation > 40% with reserved > 2GiB",
        ),
    }
}

/// Parses `in DURATION`. Returns nanoseconds.
fn within(scanner: &mut Scanner<'_>) -> Result<u64, ConditionError> {
    let hint = "as in: growth > 2GiB in 10m";
    let (column, token) = scanner.next();
    if !matches!(token, Some(Token::Word(word)) if word.eq_ignore_ascii_case("in")) {
        return wrong(column, missing(token, "`in` and a time"), hint);
    }
    let (column, token) = scanner.next();
    let Some(Token::Number(number)) = token else {
        return wrong(column, missing(token, "a time"), hint);
    };
    let unit = match scanner.peek() {
        (_, Some(Token::Word(word))) if !is_keyword(word) => {
            let (column, _) = scanner.next();
            match time_unit_ns(word) {
                Some(unit) => unit,
                None => {
                    return wrong(
                        column,
                        format!("{word:?} is no unit of time"),
                        "ms, s, m, h and d are",
                    );
                }
            }
        }
        // A time without a unit is in seconds, as everywhere in memscope's options.
        _ => 1_000_000_000,
    };
    match scaled(number, unit) {
        // Rounded down to milliseconds, because that is the smallest unit in which a time is printed.
        Some(ns) if (SHORTEST_NS..=LONGEST_NS).contains(&ns) => Ok(ns - ns % 1_000_000),
        _ => wrong(
            column,
            "growth cannot be watched over that time",
            "give a time from 1s to 30d, at least four steps of the program long",
        ),
    }
}

fn on_device(scanner: &mut Scanner<'_>) -> Result<Option<i32>, ConditionError> {
    if !matches!(scanner.peek(), (_, Some(Token::Word(word))) if word.eq_ignore_ascii_case("on")) {
        return Ok(None);
    }
    scanner.next();
    let hint = "write `on device N`, as in: reserved > 30GiB on device 0";
    let (column, token) = scanner.next();
    if !matches!(token, Some(Token::Word(word)) if word.eq_ignore_ascii_case("device")) {
        return wrong(column, missing(token, "device"), hint);
    }
    let (column, token) = scanner.next();
    match token {
        Some(Token::Number(number)) => match number.parse() {
            Ok(ordinal @ 0..=MOST_DEVICES) => Ok(Some(ordinal as i32)),
            _ => wrong(
                column,
                format!("{number} is no device"),
                format!("ordinals go from 0 to {MOST_DEVICES}, as the process counts its devices"),
            ),
        },
        _ => wrong(column, missing(token, "the number of a device"), hint),
    }
}

fn missing(found: Option<Token<'_>>, wanted: &str) -> String {
    match found {
        Some(found) => format!("{found} stands where {wanted} should"),
        None => format!("{wanted} is missing"),
    }
}

fn is_keyword(word: &str) -> bool {
    ["in", "on", "with"]
        .iter()
        .any(|keyword| word.eq_ignore_ascii_case(keyword))
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.metric.word())?;
        match self.metric {
            Metric::Oom => {}
            Metric::Allocated { above } | Metric::Reserved { above } => {
                write!(f, " > {}", Bytes(above))?;
            }
            Metric::Fragmentation {
                above,
                reserved_above,
            } => {
                write!(f, " > {}", Share(above))?;
                write!(f, " with reserved > {}", Bytes(reserved_above))?;
            }
            Metric::Growth { above, within_ns } => {
                write!(f, " > {} in {}", Bytes(above), Time(within_ns))?;
            }
            Metric::Step { number } => write!(f, " = {number}")?,
            Metric::Every { steps } => write!(f, " {steps} steps")?,
        }
        match self.device {
            Some(device) => write!(f, " on device {device}"),
            None => Ok(()),
        }
    }
}

/// Writes `value` in the largest unit that divides it evenly.
fn in_units(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    let whole = units.iter().find(|(unit, _)| value.is_multiple_of(*unit));
    match whole {
        Some((unit, name)) => write!(f, "{}{name}", value / unit),
        None => write!(f, "{value}"),
    }
}

/// A number of bytes that prints in a form that the grammar reads.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_units(
            f,
            self.0,
            &[
                (1 << 40, "TiB"),
                (1 << 30, "GiB"),
                (1 << 20, "MiB"),
                (1_000_000_000, "GB"),
                (1_000_000, "MB"),
                (1 << 10, "KiB"),
                (1, "B"),
            ],
        )
    }
}

/// A share in hundredths of a percent that prints in a form that the grammar reads.
struct Share(u64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

/// A time in nanoseconds that prints in a form that the grammar reads.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_units(
            f,
            self.0 / 1_000_000,
            &[
                (86_400_000, "d"),
                (3_600_000, "h"),
                (60_000, "m"),
                (1_000, "s"),
                (1, "ms"),
            ],
        )
    }
}

#[cfg(test)]
#[path = "condition/tests.rs"]
mod tests;
