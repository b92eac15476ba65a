//! The table of all arguments of the attributes.
//!
//! The parser, its error messages, the check for duplicates and the suggestions for unknown names
//! must agree on the arguments of each attribute. All of them read [`TABLE`], which has one row for
//! each argument: its name, the attributes that accept it, its syntax, and its names in other
//! libraries. The form of the syntax also states whether an argument is a flag or a list.
//!
//! Invariants: each argument has one row, and no name in another library is the name of an argument
//! of the same attribute.
//!
//! Tests: `argument_table/tests.rs`, and `tests/ui/fail` for the messages.

#[cfg(test)]
mod tests;

/// The attribute macros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeKind {
    Token,
    Window,
    Funnel,
    Concurrency,
}

impl AttributeKind {
    pub(crate) const ALL: [Self; 4] = [Self::Token, Self::Window, Self::Funnel, Self::Concurrency];

    /// Returns the attribute's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Token => "token_limiter",
            Self::Window => "window_limiter",
            Self::Funnel => "funnel_limiter",
            Self::Concurrency => "concurrency_limiter",
        }
    }
}

/// An argument's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentName {
    Capacity,
    Rate,
    Per,
    Limit,
    Window,
    Name,
    Group,
    Key,
    Need,
    When,
    Wait,
    Limiter,
    Fallback,
    PassArgs,
    PassRejection,
    Deadline,
    OnStoreFailure,
    Lease,
    Crate,
    CountIf,
    Policy,
    Except,
    Paced,
    Kind,
    Align,
    Max,
}

/// The attributes that accept an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppliesTo {
    All,
    Buckets,
    Windows,
    Funnels,
    Concurrency,
    /// Attributes with a lease: leased tokens, or held permits.
    Leased,
}

pub(crate) struct ArgumentSpec {
    pub(crate) word: ArgumentName,
    pub(crate) text: &'static str,
    pub(crate) of: AppliesTo,
    /// The syntax; a flag has no `=`, and a list has parentheses in its place.
    pub(crate) example: &'static str,
    /// Names of this setting in other limiters.
    pub(crate) also: &'static [&'static str],
}

/// Settings that only a policy has, which an attribute can name.
pub(crate) const OF_POLICIES: &[&str] = &[
    "allow_keys",
    "apps",
    "deny_keys",
    "enforcement",
    "on_denial",
    "penalty",
];

/// The table of all arguments, which drives parsing, errors and suggestions.
pub(crate) const TABLE: &[ArgumentSpec] = &[
    row(
        ArgumentName::Capacity,
        "capacity",
        AppliesTo::Buckets,
        "capacity = 20",
        &["burst", "size", "tokens", "max", "limit"],
    ),
    row(
        ArgumentName::Rate,
        "rate",
        AppliesTo::Buckets,
        "rate = \"100/min\"",
        &[
            "refill",
            "refill_rate",
            "leak_rate",
            "per_second",
            "tokenRate",
            "funnelRate",
            "passRate",
            "addWater",
        ],
    ),
    row(
        ArgumentName::Per,
        "per",
        AppliesTo::Buckets,
        "per = \"1m\"",
        &["period", "interval", "window", "rateUnit", "timeUnit"],
    ),
    row(
        ArgumentName::Limit,
        "limit",
        AppliesTo::Windows,
        "limit = 5",
        &[
            "max",
            "quota",
            "calls",
            "requests",
            "capacity",
            "rate",
            "passCount",
            "limitForPeriod",
        ],
    ),
    row(
        ArgumentName::Window,
        "window",
        AppliesTo::Windows,
        "window = \"1m\"",
        &[
            "per",
            "period",
            "interval",
            "duration",
            "during",
            "duringUnit",
            "limitRefreshPeriod",
        ],
    ),
    row(
        ArgumentName::Name,
        "name",
        AppliesTo::All,
        "name = \"search\"",
        &["id", "value"],
    ),
    row(
        ArgumentName::Group,
        "group",
        AppliesTo::All,
        "group = \"mail\"",
        &["share", "shared", "tag"],
    ),
    row(
        ArgumentName::Key,
        "key",
        AppliesTo::All,
        "key = \"user:{user.id}\"",
        &["by", "keys", "cacheKey"],
    ),
    row(
        ArgumentName::Need,
        "need",
        AppliesTo::All,
        "need = 2",
        &["cost", "permits", "weight", "n", "requestNeed"],
    ),
    row(
        ArgumentName::When,
        "when",
        AppliesTo::All,
        "when = user.is_guest()",
        &[
            "if",
            "condition",
            "unless",
            "skip",
            "executeCondition",
            "skipCondition",
        ],
    ),
    row(
        ArgumentName::Wait,
        "wait",
        AppliesTo::All,
        "wait = \"500ms\"",
        &[
            "timeout",
            "max_wait",
            "up_to",
            "isAbort",
            "timeoutUnit",
            "timeoutDuration",
        ],
    ),
    row(
        ArgumentName::Limiter,
        "limiter",
        AppliesTo::All,
        "limiter = self.limits",
        &["limits", "with", "using", "store"],
    ),
    row(
        ArgumentName::Fallback,
        "fallback",
        AppliesTo::All,
        "fallback = on_limited",
        &[
            "or_else",
            "otherwise",
            "on_reject",
            "fallbackMethod",
            "fallbackMethodName",
            "blockHandler",
        ],
    ),
    row(
        ArgumentName::PassArgs,
        "pass_args",
        AppliesTo::All,
        "pass_args",
        &["args", "with_args"],
    ),
    row(
        ArgumentName::PassRejection,
        "pass_rejection",
        AppliesTo::All,
        "pass_rejection",
        &["rejection", "with_rejection"],
    ),
    row(
        ArgumentName::Deadline,
        "deadline",
        AppliesTo::All,
        "deadline = \"20ms\"",
        &[],
    ),
    row(
        ArgumentName::OnStoreFailure,
        "on_store_failure",
        AppliesTo::All,
        "on_store_failure = fail_open",
        &["on_failure", "on_error"],
    ),
    row(
        ArgumentName::Lease,
        "lease",
        AppliesTo::Leased,
        "lease = \"1s\"",
        &["borrow", "prefetch", "max_age"],
    ),
    row(
        ArgumentName::Crate,
        "crate",
        AppliesTo::All,
        "crate = crate::limits",
        &["path", "krate"],
    ),
    row(
        ArgumentName::CountIf,
        "count_if",
        AppliesTo::All,
        "count_if = Result::is_err",
        &["deduct_when", "count_when", "charge_if", "predicate"],
    ),
    row(
        ArgumentName::Policy,
        "policy",
        AppliesTo::All,
        "policy = \"search\"",
        &["named", "policy_name"],
    ),
    row(
        ArgumentName::Except,
        "except",
        AppliesTo::All,
        "except(preview)",
        &["exclude", "without", "not"],
    ),
    row(
        ArgumentName::Paced,
        "paced",
        AppliesTo::Funnels,
        "paced",
        &["smooth", "delay", "shape"],
    ),
    row(
        ArgumentName::Kind,
        "kind",
        AppliesTo::Windows,
        "kind = counter",
        &["algorithm", "type", "mode"],
    ),
    row(
        ArgumentName::Align,
        "align",
        AppliesTo::Windows,
        "align = \"utc\"",
        &["aligned", "offset", "timezone", "tz"],
    ),
    row(
        ArgumentName::Max,
        "max",
        AppliesTo::Concurrency,
        "max = 4",
        &["limit", "capacity", "concurrency", "in_flight", "permits", "size"],
    ),
];

/// The arguments that are allowed with a `policy`, which defines all others.
pub(crate) const ALLOWED_WITH_POLICY: &[ArgumentName] = &[
    ArgumentName::Policy,
    ArgumentName::Key,
    ArgumentName::Group,
    ArgumentName::Need,
    ArgumentName::When,
    ArgumentName::Wait,
    ArgumentName::Limiter,
    ArgumentName::Fallback,
    ArgumentName::PassArgs,
    ArgumentName::PassRejection,
    ArgumentName::CountIf,
    ArgumentName::Except,
    ArgumentName::Crate,
];

const fn row(
    word: ArgumentName,
    text: &'static str,
    of: AppliesTo,
    example: &'static str,
    also: &'static [&'static str],
) -> ArgumentSpec {
    ArgumentSpec {
        word,
        text,
        of,
        example,
        also,
    }
}

impl ArgumentSpec {
    pub(crate) fn is_flag(&self) -> bool {
        self.text == self.example
    }

    /// Returns whether the argument takes names in parentheses.
    pub(crate) fn is_list(&self) -> bool {
        self.example.ends_with(')') && !self.example.contains('=')
    }

    pub(crate) fn is_of(&self, kind: AttributeKind) -> bool {
        match self.of {
            AppliesTo::All => true,
            AppliesTo::Buckets => matches!(kind, AttributeKind::Token | AttributeKind::Funnel),
            AppliesTo::Windows => kind == AttributeKind::Window,
            AppliesTo::Funnels => kind == AttributeKind::Funnel,
            AppliesTo::Concurrency => kind == AttributeKind::Concurrency,
            AppliesTo::Leased => kind != AttributeKind::Window,
        }
    }
}

impl ArgumentName {
    pub(crate) fn text(self) -> &'static str {
        self.row().map_or("", |row| row.text)
    }

    /// Returns an example of the argument.
    pub(crate) fn example(self) -> &'static str {
        self.row().map_or("", |row| row.example)
    }

    fn row(self) -> Option<&'static ArgumentSpec> {
        TABLE.iter().find(|row| row.word == self)
    }
}
