//! The table of a policy in a registry text: its algorithm, numbers and settings.
//!
//! An operator needs all errors of a text at once, each with its line. [`PolicySpec`] therefore
//! reports each invalid value and continues with a valid one. [`PolicySpec::build`] passes the
//! values to the builders of [`Policy`], which validate their combinations as for policies in code.
//! An override of a key is read as a spec with default settings.
//!
//! Invariants: a spec is used only if the report is empty. The names of algorithms and fields are
//! frozen, because texts are stored.
//!
//! Tests: `tests/registry/text.rs`, `tests/registry/text_errors.rs`, `tests/frozen.rs`.

use std::time::Duration;

use toml::de::DeValue;

use crate::error::{ConfigError, POLICY_NAME};
use crate::policy::{
    Algorithm, Enforcement, KeyList, LevelParams, OnDenial, OnStoreFailure, Penalty, Policy, PolicyBuilder,
    Rate, UtcOffset, Window,
};
use crate::registry::text::fields::Table;
use crate::registry::text::report::ErrorReport;
use crate::units::Amount;

/// The settings of every policy, in the order of error messages.
const SETTINGS: &str = "group, deadline, on_store_failure, lease, enforcement, on_denial, penalty, allow_keys, deny_keys, apps, key, \
                        until, rate_type, generation, scaled, trial, created_by, created_at, updated_by, updated_at, note";

/// The algorithm of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AlgorithmKind {
    TokenBucket,
    Funnel,
    SlidingWindow,
    CounterWindow,
    FixedWindow,
    Concurrency,
}

impl AlgorithmKind {
    const ALL: [Self; 6] = [
        Self::TokenBucket,
        Self::Funnel,
        Self::SlidingWindow,
        Self::CounterWindow,
        Self::FixedWindow,
        Self::Concurrency,
    ];

    pub(super) fn from_algorithm(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::TokenBucket(_) => Self::TokenBucket,
            Algorithm::Funnel(_) => Self::Funnel,
            Algorithm::SlidingWindow(_) => Self::SlidingWindow,
            Algorithm::CounterWindow(_) => Self::CounterWindow,
            Algorithm::FixedWindow(_) => Self::FixedWindow,
            Algorithm::Concurrency(_) => Self::Concurrency,
        }
    }

    /// Returns the name in a text.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::Funnel => "funnel",
            Self::SlidingWindow => "sliding_window",
            Self::CounterWindow => "counter_window",
            Self::FixedWindow => "fixed_window",
            Self::Concurrency => "concurrency",
        }
    }

    pub(super) fn numbers(self) -> &'static str {
        match self {
            Self::TokenBucket | Self::Funnel => "capacity, rate",
            Self::SlidingWindow | Self::CounterWindow => "limit, window",
            Self::FixedWindow => "limit, window, align",
            Self::Concurrency => "max",
        }
    }

    pub(super) fn fields_of_a_policy(self) -> String {
        let paced = if self == Self::Funnel { ", paced" } else { "" };
        format!("algorithm, {}{paced}, {SETTINGS}", self.numbers())
    }

    pub(super) fn fields_of_an_override(self) -> String {
        let numbers = self.numbers();
        format!("policy, key, escaped_key, group, escaped_group, {numbers}, until")
    }

    pub(super) fn read(report: &mut ErrorReport<'_>, table: &mut Table<'_>) -> Option<Self> {
        let field = table.require(report, "algorithm")?;
        let named = |text: &str| Self::ALL.into_iter().find(|kind| kind.name() == text);
        let kind = match field.value {
            DeValue::String(text) => named(text),
            _ => None,
        };
        if kind.is_none() {
            let names = Self::ALL.map(|kind| format!("\"{}\"", kind.name()));
            field.refuse(report, &format!("one of {}", names.join(", ")));
        }
        kind
    }
}

/// The names of the reactions to a failure of the store.
pub(super) const ON_STORE_FAILURE: [(&str, OnStoreFailure); 4] = [
    ("local", OnStoreFailure::Local),
    ("fail_open", OnStoreFailure::FailOpen),
    ("fail_closed", OnStoreFailure::FailClosed),
    ("error", OnStoreFailure::Error),
];

/// The settings of a policy except its numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedSettings {
    group: Option<String>,
    deadline: Option<Duration>,
    on_store_failure: Option<OnStoreFailure>,
    lease: Option<Duration>,
    paced: bool,
    enforcement: Option<Enforcement>,
    on_denial: Option<OnDenial>,
    penalty: Option<Penalty>,
    allow_keys: Option<KeyList>,
    deny_keys: Option<KeyList>,
}

impl SharedSettings {
    pub(super) fn read(
        report: &mut ErrorReport<'_>,
        table: &mut Table<'_>,
        kind: Option<AlgorithmKind>,
    ) -> Self {
        let paced = if kind == Some(AlgorithmKind::Funnel) {
            table.take("paced")
        } else {
            None
        };
        let group = table.take("group");
        let (deadline, lease) = (table.take("deadline"), table.take("lease"));
        let (enforcement, on_denial) = (table.take("enforcement"), table.take("on_denial"));
        let penalty = table.take("penalty");
        let (allow_keys, deny_keys) = (table.take("allow_keys"), table.take("deny_keys"));
        let on_store_failure = table.take("on_store_failure").and_then(|field| {
            let answer = match field.value {
                DeValue::String(text) => ON_STORE_FAILURE.iter().find(|(name, _)| name == text),
                _ => None,
            };
            if answer.is_none() {
                let names = ON_STORE_FAILURE.map(|(name, _)| format!("\"{name}\""));
                field.refuse(report, &format!("one of {}", names.join(", ")));
            }
            answer.map(|(_, answer)| *answer)
        });
        Self {
            group: group.and_then(|field| field.text(report, "text").map(str::to_owned)),
            deadline: deadline.and_then(|field| field.duration(report)),
            on_store_failure,
            lease: lease.and_then(|field| field.duration(report)),
            paced: paced.and_then(|field| field.flag(report)).unwrap_or_default(),
            enforcement: enforcement.and_then(|field| field.parsed(report)),
            on_denial: on_denial.and_then(|field| field.parsed(report)),
            penalty: penalty.and_then(|field| field.parsed(report)),
            allow_keys: allow_keys.and_then(|field| field.keys(report)),
            deny_keys: deny_keys.and_then(|field| field.keys(report)),
        }
    }

    fn apply<S>(&self, mut builder: PolicyBuilder<S>) -> PolicyBuilder<S> {
        if let Some(group) = &self.group {
            builder = builder.group(group);
        }
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        if let Some(answer) = self.on_store_failure {
            builder = builder.on_store_failure(answer);
        }
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let Some(enforcement) = self.enforcement {
            builder = builder.enforcement(enforcement);
        }
        if let Some(answer) = self.on_denial {
            builder = builder.on_denial(answer);
        }
        if let Some(penalty) = self.penalty {
            builder = builder.penalty(penalty);
        }
        if let Some(keys) = &self.allow_keys {
            builder = builder.allow_keys(keys.clone());
        }
        if let Some(keys) = &self.deny_keys {
            builder = builder.deny_keys(keys.clone());
        }
        builder
    }
}

/// A policy without its name. A missing or malformed value is reported and replaced by a valid one,
/// so that the other values are validated too.
#[derive(Clone, Debug)]
pub(super) struct PolicySpec {
    kind: AlgorithmKind,
    /// For a level.
    capacity: Amount,
    rate: Rate,
    /// For a window.
    limit: Amount,
    window: Window,
    aligned: Option<UtcOffset>,
    /// For a concurrency limit.
    max: Amount,
    settings: SharedSettings,
}

impl PolicySpec {
    /// Reads the numbers of this algorithm.
    pub(super) fn read(
        report: &mut ErrorReport<'_>,
        table: &mut Table<'_>,
        kind: AlgorithmKind,
        settings: SharedSettings,
    ) -> Self {
        let mut draft = Self {
            kind,
            settings,
            ..Self::placeholder()
        };
        match kind {
            AlgorithmKind::TokenBucket | AlgorithmKind::Funnel => {
                let (capacity, rate) = (table.require(report, "capacity"), table.require(report, "rate"));
                draft.capacity = capacity
                    .and_then(|field| field.amount(report))
                    .unwrap_or(draft.capacity);
                draft.rate = rate.and_then(|field| field.rate(report)).unwrap_or(draft.rate);
            }
            AlgorithmKind::SlidingWindow | AlgorithmKind::CounterWindow | AlgorithmKind::FixedWindow => {
                let (limit, window) = (table.require(report, "limit"), table.require(report, "window"));
                draft.limit = limit
                    .and_then(|field| field.amount(report))
                    .unwrap_or(draft.limit);
                draft.window = window
                    .and_then(|field| field.window(report))
                    .unwrap_or(draft.window);
                if kind == AlgorithmKind::FixedWindow {
                    let aligned = table.take("align");
                    draft.aligned = aligned.and_then(|field| field.parsed(report));
                }
            }
            AlgorithmKind::Concurrency => {
                let max = table.require(report, "max");
                draft.max = max.and_then(|field| field.amount(report)).unwrap_or(draft.max);
            }
        }
        draft
    }

    fn placeholder() -> Self {
        Self {
            kind: AlgorithmKind::SlidingWindow,
            capacity: Amount::ONE,
            rate: Rate::one_per_second(),
            limit: Amount::ONE,
            window: Window::from(Duration::from_secs(1)),
            aligned: None,
            max: Amount::ONE,
            settings: SharedSettings::default(),
        }
    }

    /// Builds the policy. Each value out of range is reported; the policy is then discarded.
    pub(super) fn build(
        mut self,
        report: &mut ErrorReport<'_>,
        table: &Table<'_>,
        name: &str,
    ) -> Option<Policy> {
        /// Each iteration reports one error and replaces its value.
        const MAX_ERRORS: usize = 8;
        let mut name = name;
        for _ in 0..MAX_ERRORS {
            let error = match self.try_build(name) {
                Ok(policy) => return Some(policy),
                // The message contains the path of the policy's table.
                Err(error) => error.without_policy(),
            };
            let setting = match &error {
                ConfigError::Invalid { field: name, .. } => *name,
                _ => "",
            };
            table.refuse(report, setting, &crate::registry::text::expected(&error));
            let placeholder = Self::placeholder();
            match setting {
                "deadline" => self.settings.deadline = None,
                "lease" => self.settings.lease = None,
                "on_denial" => self.settings.on_denial = None,
                "penalty" => self.settings.penalty = None,
                "group" => self.settings.group = None,
                POLICY_NAME => name = "p",
                // All remaining errors are errors of numbers.
                _ => {
                    self = Self {
                        kind: self.kind,
                        settings: self.settings,
                        ..placeholder
                    }
                }
            }
        }
        None
    }

    fn try_build(&self, name: &str) -> Result<Policy, ConfigError> {
        match self.kind {
            AlgorithmKind::TokenBucket => self.level(Policy::token_bucket(name)),
            AlgorithmKind::Funnel => self.level(Policy::funnel(name)),
            AlgorithmKind::SlidingWindow => {
                let builder = Policy::sliding_window(name).limit(self.limit).window(self.window);
                self.settings.apply(builder).build()
            }
            AlgorithmKind::CounterWindow => {
                let builder = Policy::counter_window(name).limit(self.limit).window(self.window);
                self.settings.apply(builder).build()
            }
            AlgorithmKind::FixedWindow => {
                let mut builder = Policy::fixed_window(name).limit(self.limit).window(self.window);
                if let Some(offset) = self.aligned {
                    builder = builder.aligned(offset);
                }
                self.settings.apply(builder).build()
            }
            AlgorithmKind::Concurrency => self
                .settings
                .apply(Policy::concurrency(name).max(self.max))
                .build(),
        }
    }

    fn level(&self, builder: PolicyBuilder<LevelParams>) -> Result<Policy, ConfigError> {
        let mut builder = builder.capacity(self.capacity).rate(self.rate);
        if self.settings.paced {
            builder = builder.paced();
        }
        self.settings.apply(builder).build()
    }
}
