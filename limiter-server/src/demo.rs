//! A demonstration: apps, policies, users of each role, an edit history and generated traffic.
//!
//! [`content`] fills an empty database with a shop whose last day is recorded, and [`traffic`] then
//! calls the gateway of the same process about fifty times a second. Customers, addresses and
//! counts are invented. `limiter-server demo` keeps everything in a temporary directory.

pub mod content;
pub mod temporary;
pub mod traffic;

/// A customer that calls more often than its limits permit.
const BUSY_CUSTOMER: &str = "acme";
/// An address that tries passwords.
const ATTACKER: &str = "203.0.113.66";
/// The minutes since the suspension of the policy `suggestions`.
const SUSPENDED_MINUTES: i64 = 20;
/// Customers, the busiest first.
const CUSTOMERS: [&str; 8] = [
    BUSY_CUSTOMER,
    "globex",
    "initech",
    "umbrella",
    "hooli",
    "soylent",
    "stark",
    "wayne",
];
