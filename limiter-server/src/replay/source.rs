//! One file of calls: its lines, parsed, in the order of their times.
//!
//! Unless the format is configured, it is detected for each line until one line is a call in the
//! detected format. A line without a time, a key or a valid cost is counted as a problem and
//! skipped; a file that cannot be read, or a field that the format lacks, ends the replay.
//!
//! Invariant: times of the calls do not decrease, which `timeline.rs` ensures and the merge of
//! files requires. Tests: `tests/replay/input.rs`.

use std::path::Path;

use limiter_core::Amount;

use crate::replay::format::{LineParser, LogFormat};
use crate::replay::input::{ByteCount, LineRead, Lines};
use crate::replay::line::{FieldNames, FieldValues};
use crate::replay::problems::{LineProblem, ProblemKind, Problems};
use crate::replay::time::TimeParser;
use crate::replay::timeline::Timeline;

/// A line as a call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The time at which it is decided, in microseconds since 1970.
    pub(super) at: u64,
    pub(super) cost: Amount,
    values: FieldValues,
    key_fields: usize,
}

impl Call {
    /// Returns the values of the key, of which each call has all.
    pub(super) fn key(&self) -> impl Iterator<Item = &str> {
        let fields = self.values.fields.iter().take(self.key_fields);
        fields.map(|field| field.get().unwrap_or_default())
    }
}

/// The fields that make a call.
#[derive(Clone, Debug)]
pub(super) struct CallFields {
    pub(super) names: FieldNames,
    pub(super) has_cost: bool,
}

/// Reads calls from one file.
#[derive(Debug)]
pub(super) struct LogSource {
    name: String,
    lines: Lines,
    format: Option<LogFormat>,
    parser: Option<LineParser>,
    /// True if a line was a call in the format of the parser.
    is_format_known: bool,
    fields: CallFields,
    call: Call,
    /// The call after the current one with its recorded time, if it was read ahead.
    ahead: Option<(Call, u64)>,
    pub(super) times: TimeParser,
    pub(super) timeline: Timeline,
}

impl LogSource {
    pub(super) fn open(
        path: &Path,
        format: Option<LogFormat>,
        fields: &CallFields,
        count: &ByteCount,
    ) -> Result<Self, String> {
        let name = path.display().to_string();
        let lines = Lines::open(path, count).map_err(|error| format!("cannot read {name}: {error}"))?;
        let count = fields.names.fields.len();
        Ok(Self {
            name,
            lines,
            format,
            parser: None,
            is_format_known: format.is_some(),
            fields: fields.clone(),
            call: Call {
                at: 0,
                cost: Amount::ONE,
                values: FieldValues::new(count),
                key_fields: count - usize::from(fields.has_cost),
            },
            ahead: None,
            times: TimeParser::default(),
            timeline: Timeline::default(),
        })
    }

    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines.number
    }

    /// Reads up to the next line that is a call; false at the end. A time far ahead of the lines
    /// before and after it is a problem, because it would move the time of all later lines.
    pub(super) fn advance(&mut self, problems: &mut Problems) -> Result<bool, String> {
        let mut recorded = match self.ahead.take() {
            Some((call, recorded)) => {
                self.call = call;
                recorded
            }
            None => match self.read(problems)? {
                Some(recorded) => recorded,
                None => return Ok(false),
            },
        };
        while self.timeline.is_far_ahead(recorded) {
            let (call, line) = (self.call.clone(), self.lines.number);
            let Some(next) = self.read(problems)? else {
                self.call = call;
                break;
            };
            if !Timeline::is_refuted(recorded, next) {
                self.ahead = Some((std::mem::replace(&mut self.call, call), next));
                break;
            }
            let time = call.values.time.get().unwrap_or_default();
            let expected = "a time that is not far ahead of the next line";
            problems.add(
                &self.name,
                line,
                &LineProblem::new(ProblemKind::Time, time, expected),
            );
            recorded = next;
        }
        self.call.at = self.timeline.place(recorded);
        Ok(true)
    }

    /// Reads up to the next line that is a call, and returns its recorded time.
    fn read(&mut self, problems: &mut Problems) -> Result<Option<u64>, String> {
        loop {
            let read = self.lines.advance().map_err(|error| {
                let (name, line) = (&self.name, self.lines.number + 1);
                format!("cannot read {name} at line {line}: {error}")
            })?;
            let parsed = match read {
                LineRead::End => return Ok(None),
                LineRead::TooLong => Err(LineProblem::new(
                    ProblemKind::Text,
                    &String::from_utf8_lossy(self.lines.bytes()),
                    "a line of at most 1 MiB",
                )),
                LineRead::Line => self.parse()?,
            };
            match parsed {
                Ok(recorded) => return Ok(Some(recorded)),
                Err(problem) => problems.add(&self.name, self.lines.number, &problem),
            }
        }
    }

    /// Parses the line. The outer error ends the replay.
    fn parse(&mut self) -> Result<Result<u64, LineProblem>, String> {
        let Ok(line) = std::str::from_utf8(self.lines.bytes()) else {
            let text = String::from_utf8_lossy(self.lines.bytes());
            return Ok(Err(LineProblem::new(ProblemKind::Text, &text, "UTF-8")));
        };
        let parser = match &mut self.parser {
            Some(parser) => parser,
            none => {
                let format = self.format.unwrap_or_else(|| LogFormat::detect(line));
                match LineParser::new(format, &self.fields.names) {
                    Ok(parser) => none.insert(parser),
                    Err(_) if self.format.is_none() && !is_in_format(format, line) => {
                        let expected = "a line in the format combined, json or logfmt";
                        return Ok(Err(LineProblem::new(ProblemKind::Format, line, expected)));
                    }
                    Err(error) => return Err(format!("{}: {error}", self.name)),
                }
            }
        };
        let call = &mut self.call;
        let parsed = parser.parse(line, &mut call.values).and_then(|()| {
            call.cost = cost(call, &self.fields, line)?;
            check_key(call, &self.fields, line)?;
            let Some(time) = call.values.time.get() else {
                let expected = match &self.fields.names.time {
                    Some(name) => format!("the time in the field `{name}`"),
                    None => "a field with the time; name it with --time".to_owned(),
                };
                return Err(LineProblem::new(ProblemKind::Time, line, expected));
            };
            self.times.parse(time)
        });
        if parsed.is_err() && !self.is_format_known {
            // The first call selects the format.
            self.parser = None;
        }
        self.is_format_known |= parsed.is_ok();
        Ok(parsed)
    }
}

/// Returns whether a line is in a format that was detected for it. A line of another program can
/// look like one.
fn is_in_format(format: LogFormat, line: &str) -> bool {
    let mut values = FieldValues::new(0);
    let parser = LineParser::new(format, &FieldNames::default());
    let is_read = parser.is_ok_and(|parser| parser.parse(line, &mut values).is_ok());
    let time = values.time.get().filter(|_| is_read);
    time.is_some_and(|time| TimeParser::default().parse(time).is_ok())
}

fn check_key(call: &Call, fields: &CallFields, line: &str) -> Result<(), LineProblem> {
    let values = call.values.fields.iter().zip(&fields.names.fields);
    let mut absent = values
        .take(call.key_fields)
        .filter(|(value, _)| value.get().is_none());
    match absent.next() {
        None => Ok(()),
        Some((_, name)) => {
            let expected = format!("a value of `{name}` for the key");
            Err(LineProblem::new(ProblemKind::Key, line, expected))
        }
    }
}

fn cost(call: &Call, fields: &CallFields, line: &str) -> Result<Amount, LineProblem> {
    if !fields.has_cost {
        return Ok(Amount::ONE);
    }
    let name = fields.names.fields.last().map_or("", String::as_str);
    let Some(text) = call.values.fields.last().and_then(|value| value.get()) else {
        let expected = format!("a value of `{name}` for the cost");
        return Err(LineProblem::new(ProblemKind::Cost, line, expected));
    };
    // Servers write a hyphen for a response without a body.
    if text == "-" {
        return Ok(Amount::ZERO);
    }
    match text.parse::<u64>() {
        Ok(cost) => Ok(Amount::from(cost)),
        Err(_) => text.parse().map_err(|_| {
            let expected = format!("a number with at most three decimals in `{name}` for the cost");
            LineProblem::new(ProblemKind::Cost, text, expected)
        }),
    }
}
