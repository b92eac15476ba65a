//! The formats of log lines.

use std::str::FromStr;

use crate::replay::combined::CombinedParser;
use crate::replay::json_lines::JsonParser;
use crate::replay::line::{FieldNames, FieldValues};
use crate::replay::logfmt::LogfmtParser;
use crate::replay::problems::LineProblem;
use crate::replay::time::TIME_FIELDS;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// The common and combined formats of Apache and nginx.
    Combined,
    /// One JSON object per line.
    Json,
    /// `key=value` pairs.
    Logfmt,
}

impl LogFormat {
    /// Detects the format of a line.
    pub(super) fn detect(line: &str) -> Self {
        if line.trim_start().starts_with('{') {
            Self::Json
        } else if line.contains(" [") && line.contains("] \"") {
            Self::Combined
        } else {
            Self::Logfmt
        }
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "combined" => Ok(Self::Combined),
            "json" => Ok(Self::Json),
            "logfmt" => Ok(Self::Logfmt),
            _ => Err(format!(
                "`{text}` is no format, expected combined, json or logfmt"
            )),
        }
    }
}

/// Reads the fields of lines.
#[derive(Clone, Debug)]
pub(super) enum LineParser {
    Combined(CombinedParser),
    Json(JsonParser),
    Logfmt(LogfmtParser),
}

impl LineParser {
    pub(super) fn new(format: LogFormat, names: &FieldNames) -> Result<Self, String> {
        Ok(match format {
            LogFormat::Combined => Self::Combined(CombinedParser::new(names)?),
            LogFormat::Json => Self::Json(JsonParser::new(names, &TIME_FIELDS)),
            LogFormat::Logfmt => Self::Logfmt(LogfmtParser::new(names, &TIME_FIELDS)),
        })
    }

    pub(super) fn parse(&self, line: &str, values: &mut FieldValues) -> Result<(), LineProblem> {
        values.clear();
        match self {
            Self::Combined(parser) => parser.parse(line, values),
            Self::Json(parser) => parser.parse(line, values),
            Self::Logfmt(parser) => parser.parse(line, values),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::format::LogFormat;

    #[test]
    fn format_is_detected_from_line() {
        let combined = r#"::1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 304 0"#;
        assert_eq!(LogFormat::detect(combined), LogFormat::Combined);
        assert_eq!(LogFormat::detect(" {\"ts\":1}"), LogFormat::Json);
        assert_eq!(LogFormat::detect("ts=1 path=/"), LogFormat::Logfmt);
    }
}
