//! The results of the faults: measured figures, gates, and whether they passed.

use std::fmt::{Display, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

/// One gate of one fault.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) fault: &'static str,
    pub(crate) figure: String,
    pub(crate) gate: String,
    pub(crate) ok: bool,
}

/// The rows of one fault. Shared, so that the rows before a hang are not lost.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    fault: &'static str,
    rows: Arc<Mutex<Vec<Row>>>,
}

impl Report {
    pub(crate) fn of(fault: &'static str) -> Self {
        Self {
            fault,
            rows: Arc::default(),
        }
    }

    /// Adds a gate that was judged.
    pub(crate) fn row(&self, figure: impl Display, gate: impl Display, ok: bool) {
        let row = Row {
            fault: self.fault,
            figure: figure.to_string(),
            gate: gate.to_string(),
            ok,
        };
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }

    /// Adds a figure that may be at most so large.
    pub(crate) fn at_most<T: PartialOrd + Display>(&self, name: &str, figure: T, maximum: T) {
        let ok = figure <= maximum;
        self.row(format!("{figure} {name}"), format!("≤ {maximum}"), ok);
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Row {
    /// Returns one line of JSON.
    pub(crate) fn json(&self) -> String {
        format!(
            "{{\"fault\":{},\"figure\":{},\"gate\":{},\"ok\":{}}}",
            quoted(self.fault),
            quoted(&self.figure),
            quoted(&self.gate),
            self.ok
        )
    }

    /// Returns one line of a table.
    pub(crate) fn line(&self) -> String {
        let verdict = if self.ok { "ok  " } else { "FAIL" };
        format!("{verdict} {:<18} {:<64} {}", self.fault, self.figure, self.gate)
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_one_line_of_json() {
        let report = Report::of("kill");
        report.row("replied \"no\"\n", "nothing", false);
        report.at_most("calls", 3, 2);
        report.at_most("calls", 2, 2);
        let rows = report.rows();
        let lines: Vec<String> = rows.iter().map(Row::json).collect();
        assert_eq!(
            lines,
            [
                r#"{"fault":"kill","figure":"replied \"no\"\u000a","gate":"nothing","ok":false}"#,
                r#"{"fault":"kill","figure":"3 calls","gate":"≤ 2","ok":false}"#,
                r#"{"fault":"kill","figure":"2 calls","gate":"≤ 2","ok":true}"#,
            ]
        );
    }
}
