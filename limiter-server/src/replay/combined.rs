//! The common and combined formats of Apache and nginx.
//!
//! `address identity user [time] "request" status bytes "referer" "agent"`; further values are
//! ignored. A quote in a value is escaped by a backslash. Tests: below.

use crate::replay::line::{FieldNames, FieldValues};
use crate::replay::problems::{LineProblem, ProblemKind};

const EXPECTED: &str = "address identity user [time] \"request\" status bytes";
const NAMES: &str = "remote_addr, remote_user, time_local, request, method, uri, path, protocol, \
                     status, body_bytes_sent, http_referer, http_user_agent";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CombinedField {
    Address,
    User,
    Time,
    Request,
    Method,
    Uri,
    Path,
    Protocol,
    Status,
    Bytes,
    Referer,
    Agent,
}

/// Reads fields of lines in the combined format.
#[derive(Clone, Debug)]
pub(super) struct CombinedParser {
    fields: Vec<CombinedField>,
}

impl CombinedParser {
    pub(super) fn new(names: &FieldNames) -> Result<Self, String> {
        let fields = names
            .fields
            .iter()
            .map(|name| field(name))
            .collect::<Result<_, _>>()?;
        match names.time.as_deref().map(field).transpose()? {
            None | Some(CombinedField::Time) => Ok(Self { fields }),
            Some(_) => Err("the combined format has the time in time_local only".to_owned()),
        }
    }

    pub(super) fn parse(&self, line: &str, values: &mut FieldValues) -> Result<(), LineProblem> {
        let parts = split(line).ok_or_else(|| LineProblem::new(ProblemKind::Format, line, EXPECTED))?;
        values.time.set(parts.time);
        for (field, value) in self.fields.iter().zip(&mut values.fields) {
            if let Some(text) = parts.get(*field) {
                value.set(text);
            }
        }
        Ok(())
    }
}

fn field(name: &str) -> Result<CombinedField, String> {
    Ok(match name {
        "remote_addr" => CombinedField::Address,
        "remote_user" => CombinedField::User,
        "time_local" | "time" => CombinedField::Time,
        "request" => CombinedField::Request,
        "method" => CombinedField::Method,
        "uri" => CombinedField::Uri,
        "path" => CombinedField::Path,
        "protocol" => CombinedField::Protocol,
        "status" => CombinedField::Status,
        "body_bytes_sent" | "bytes" => CombinedField::Bytes,
        "http_referer" | "referer" => CombinedField::Referer,
        "http_user_agent" | "user_agent" => CombinedField::Agent,
        _ => {
            return Err(format!(
                "the combined format has no field `{name}`, expected one of {NAMES}"
            ));
        }
    })
}

/// The parts of a line.
#[derive(Clone, Copy, Debug)]
struct LineParts<'a> {
    address: &'a str,
    user: &'a str,
    time: &'a str,
    request: &'a str,
    status: &'a str,
    bytes: &'a str,
    referer: Option<&'a str>,
    agent: Option<&'a str>,
}

impl<'a> LineParts<'a> {
    fn get(&self, field: CombinedField) -> Option<&'a str> {
        match field {
            CombinedField::Address => Some(self.address),
            CombinedField::User => Some(self.user),
            CombinedField::Time => Some(self.time),
            CombinedField::Request => Some(self.request),
            CombinedField::Status => Some(self.status),
            CombinedField::Bytes => Some(self.bytes),
            CombinedField::Referer => self.referer,
            CombinedField::Agent => self.agent,
            CombinedField::Method => Some(self.request.split_once(' ')?.0),
            CombinedField::Protocol => Some(self.request.rsplit_once(' ')?.1),
            CombinedField::Uri => self.uri(),
            CombinedField::Path => self.uri()?.split('?').next(),
        }
    }

    fn uri(&self) -> Option<&'a str> {
        self.request.split(' ').nth(1)
    }
}

fn split(line: &str) -> Option<LineParts<'_>> {
    let (head, rest) = line.split_once(" [")?;
    let (time, rest) = rest.split_once("] \"")?;
    let (address, names) = head.split_once(' ')?;
    let (_, user) = names.split_once(' ')?;
    let (request, rest) = quoted(rest)?;
    let rest = rest.strip_prefix(' ')?;
    let (status, rest) = rest.split_once(' ')?;
    let (bytes, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (referer, rest) = match rest.strip_prefix('"').and_then(quoted) {
        Some((referer, rest)) => (Some(referer), rest),
        None => (None, ""),
    };
    let agent = rest.strip_prefix(" \"").and_then(quoted);
    Some(LineParts {
        address,
        user,
        time,
        request,
        status,
        bytes,
        referer,
        agent: agent.map(|(agent, _)| agent),
    })
}

/// Splits at the closing quote.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| *byte == b'"')?;
        let before = bytes.get(..at)?;
        let escapes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
        if escapes % 2 == 0 {
            return Some((text.get(..at)?, text.get(at + 1..)?));
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::combined::CombinedParser;
    use crate::replay::line::{FieldNames, FieldValues};

    fn read(line: &str, names: &[&str]) -> Option<Vec<Option<String>>> {
        let names = FieldNames {
            time: None,
            fields: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let parser = CombinedParser::new(&names).unwrap();
        let mut values = FieldValues::new(names.fields.len());
        parser.parse(line, &mut values).ok()?;
        let times = std::iter::once(&values.time);
        let all = times.chain(&values.fields);
        Some(all.map(|value| value.get().map(str::to_owned)).collect())
    }

    #[test]
    fn combined_line_has_all_fields() {
        let line = r#"::1 - ann [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 2326 "-" "say \"hi\" \\" 0.1"#;
        let names = [
            "remote_addr",
            "remote_user",
            "path",
            "uri",
            "method",
            "status",
            "bytes",
            "user_agent",
        ];
        let values: Vec<String> = read(line, &names)
            .unwrap()
            .into_iter()
            .map(Option::unwrap)
            .collect();
        let expected = [
            "10/Oct/2000:13:55:36 -0700",
            "::1",
            "ann",
            "/a",
            "/a?b=c",
            "GET",
            "200",
            "2326",
            r#"say \"hi\" \\"#,
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn common_line_has_no_referer() {
        let line = r#"10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 304 -"#;
        let values = read(line, &["bytes", "referer"]).unwrap();
        assert_eq!(values[1].as_deref(), Some("-"));
        assert_eq!(values[2], None);
    }

    #[test]
    fn request_without_path_has_no_path() {
        let line = r#"10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03" 400 157 "-" "-""#;
        assert_eq!(read(line, &["path", "method"]).unwrap()[1..], [None, None]);
    }

    #[test]
    fn truncated_lines_are_rejected() {
        let line = r#"10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 304 "#;
        for end in 0..line.len() - 4 {
            assert!(read(&line[..end], &["path"]).is_none(), "{}", &line[..end]);
        }
    }
}
