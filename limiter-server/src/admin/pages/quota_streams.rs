//! The section of the status page with the assignments of the quota service.

use serde::Deserialize;

use crate::admin::numbers::grouped;

/// An assignment.
#[derive(Debug, Deserialize)]
pub(super) struct AssignmentView {
    pub(super) domain: String,
    bucket: Vec<String>,
    pub(super) policy: String,
    pub(super) peer: String,
    state: String,
    rate_thousandths: u64,
    pub(super) permits: u32,
    demand_thousandths: u64,
    pub(super) age_seconds: u64,
}

/// The assignments of a node; `None` if the node has no gateway.
#[derive(Debug, Deserialize)]
pub(super) struct AssignmentsView {
    pub(super) node: String,
    pub(super) assignments: Option<Vec<AssignmentView>>,
}

impl AssignmentView {
    pub(super) fn bucket_text(&self) -> String {
        self.bucket.join(", ")
    }

    /// Returns whether the row has a share.
    pub(super) fn has_share(&self) -> bool {
        matches!(&*self.state, "divided" | "shadow") && self.permits > 0
    }

    /// Returns the state in words.
    pub(super) fn state_text(&self) -> &'static str {
        match &*self.state {
            "divided" => "Assigned",
            "shadow" => "Shadow",
            "allow_all" => "All allowed",
            "deny_all" => "All denied",
            _ => "Waiting",
        }
    }

    /// Returns the class of the state's colour.
    pub(super) fn state_class(&self) -> &'static str {
        match &*self.state {
            "divided" => "ok",
            "shadow" => "shadow",
            "deny_all" => "bad",
            _ => "waiting",
        }
    }

    pub(super) fn rate_text(&self) -> String {
        per_second(self.rate_thousandths)
    }

    pub(super) fn demand_text(&self) -> String {
        per_second(self.demand_thousandths)
    }
}

/// Thousandths per second with one digit after the point.
fn per_second(thousandths: u64) -> String {
    let tenths = thousandths / 100;
    format!("{}.{}/s", grouped(tenths / 10), tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_one_digit_after_the_point() {
        assert_eq!(per_second(187_500), "187.5/s");
        assert_eq!(per_second(40), "0.0/s");
        assert_eq!(per_second(12_345_678), "12,345.6/s");
    }
}
