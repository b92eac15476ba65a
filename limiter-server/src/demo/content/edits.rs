//! The rules and the saved versions of the policies of the demonstration.
//!
//! Constants only: each version has its age in hours, author, text and reason, the oldest first.
//! Tests: in `demo/content.rs`, which parses all texts and compares the order.

use crate::demo::content::ADMIN;

/// The rules of the domain `edge`.
pub(super) const RULES_TEXT: &str = r#"
[[rule]]
domain = "edge"
match = ["route=search", "customer"]
policy = "search"

[[rule]]
domain = "edge"
match = ["route=checkout", "customer"]
policy = "checkout"

[[rule]]
domain = "edge"
match = ["route=payments", "customer"]
policy = "payments"

[[rule]]
domain = "edge"
match = ["route=login", "remote_address"]
policy = "login"

[[rule]]
domain = "edge"
match = ["route=suggestions", "customer"]
policy = "suggestions"
"#;

/// A saved version of a policy.
pub(in crate::demo) struct SavedEdit<'a> {
    pub(in crate::demo) hours_ago: i64,
    pub(in crate::demo) author: &'a str,
    pub(in crate::demo) policy: &'a str,
    pub(in crate::demo) text: &'a str,
    pub(in crate::demo) reason: &'a str,
}

pub(super) const EDITS: [SavedEdit<'static>; 11] = [
    SavedEdit {
        hours_ago: 71,
        author: "olivia",
        policy: "search",
        text: "algorithm = 'token_bucket'\ncapacity = 20\nrate = '5/s'\napps = ['search']\nkey = ['customer']\n",
        reason: "Limit crawlers",
    },
    SavedEdit {
        hours_ago: 70,
        author: "olivia",
        policy: "checkout",
        text: "algorithm = 'token_bucket'\ncapacity = 40\nrate = '20/s'\napps = ['checkout']\n",
        reason: "Protect the order service",
    },
    SavedEdit {
        hours_ago: 70,
        author: "olivia",
        policy: "payments",
        text: "algorithm = 'sliding_window'\nlimit = 4\nwindow = '10s'\napps = ['checkout']\n",
        reason: "The payment provider bills bursts",
    },
    SavedEdit {
        hours_ago: 69,
        author: ADMIN,
        policy: "login",
        text: "algorithm = 'sliding_window'\nlimit = 20\nwindow = '1m'\napps = ['accounts']\nkey = ['address']\n",
        reason: "Slow down password guessing",
    },
    SavedEdit {
        hours_ago: 68,
        author: ADMIN,
        policy: "api",
        text: "algorithm = 'token_bucket'\ncapacity = 300\nrate = '100/s'\n",
        reason: "One limit for all apps",
    },
    SavedEdit {
        hours_ago: 50,
        author: "olivia",
        policy: "suggestions",
        text: "algorithm = 'token_bucket'\ncapacity = 5\nrate = '1/s'\napps = ['search']\nenforcement = 'shadow'\n",
        reason: "Measure before enforcing",
    },
    SavedEdit {
        hours_ago: 48,
        author: "olivia",
        policy: "reports",
        text: "algorithm = 'fixed_window'\nlimit = 1000\nwindow = '1h'\napps = ['checkout']\nenforcement = 'off'\n",
        reason: "Prepared for the new reports",
    },
    SavedEdit {
        hours_ago: 16,
        author: "olivia",
        policy: "search",
        text: "algorithm = 'token_bucket'\ncapacity = 50\nrate = '8/s'\napps = ['search']\nkey = ['customer']\n",
        reason: "Spring sale",
    },
    SavedEdit {
        hours_ago: 9,
        author: ADMIN,
        policy: "login",
        text: "algorithm = 'sliding_window'\nlimit = 5\nwindow = '1m'\napps = ['accounts']\nkey = ['address']\n",
        reason: "One address tries passwords",
    },
    SavedEdit {
        hours_ago: 6,
        author: "olivia",
        policy: "payments",
        text: "algorithm = 'sliding_window'\nlimit = 6\nwindow = '10s'\napps = ['checkout']\n",
        reason: "Two large customers were denied",
    },
    SavedEdit {
        hours_ago: 3,
        author: "eddie",
        policy: "search",
        text: "algorithm = 'token_bucket'\ncapacity = 50\nrate = '10/s'\napps = ['search']\nkey = ['customer']\n",
        reason: "Sale continues",
    },
];
