//! The arguments that there are, in one table.

/// Which of the attributes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Token,
    Window,
    Funnel,
    Concurrency,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Token, Self::Window, Self::Funnel, Self::Concurrency];

    /// The attribute's name.
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
pub(crate) enum Word {
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

/// Which attributes take an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    All,
    Buckets,
    Windows,
    Funnels,
    Concurrency,
    /// Whatever has a lease: that of what is borrowed, or of what is held.
    Leased,
}

pub(crate) struct Row {
    pub(crate) word: Word,
    pub(crate) text: &'static str,
    pub(crate) of: Of,
    /// How it is written; a flag has no `=`, and a list has parentheses in its place.
    pub(crate) example: &'static str,
    /// What people write who know other limiters.
    pub(crate) also: &'static [&'static str],
}

/// What only a policy says, which an attribute can name.
pub(crate) const OF_POLICIES: &[&str] = &[
    "allow_keys",
    "apps",
    "deny_keys",
    "enforcement",
    "on_denial",
    "penalty",
];

/// Every argument there is. It drives what is parsed, what is refused, and what the messages offer.
pub(crate) const TABLE: &[Row] = &[
    row(
        Word::Capacity,
        "capacity",
        Of::Buckets,
        "capacity = 20",
        &["burst", "size", "tokens", "max", "limit"],
    ),
    row(
        Word::Rate,
        "rate",
        Of::Buckets,
        "rate = \"100/min\"",
        &["refill", "refill_rate", "leak_rate", "per_second"],
    ),
    row(
        Word::Per,
        "per",
        Of::Buckets,
        "per = \"1m\"",
        &["period", "interval", "window", "rateUnit", "timeUnit"],
    ),
    row(
        Word::Limit,
        "limit",
        Of::Windows,
        "limit = 5",
        &["max", "quota", "calls", "requests", "capacity", "rate"],
    ),
    row(
        Word::Window,
        "window",
        Of::Windows,
        "window = \"1m\"",
        &["per", "period", "interval", "duration", "during", "duringUnit"],
    ),
    row(Word::Name, "name", Of::All, "name = \"search\"", &["id"]),
    row(
        Word::Group,
        "group",
        Of::All,
        "group = \"mail\"",
        &["share", "shared", "tag"],
    ),
    row(
        Word::Key,
        "key",
        Of::All,
        "key = \"user:{user.id}\"",
        &["by", "keys"],
    ),
    row(
        Word::Need,
        "need",
        Of::All,
        "need = 2",
        &["cost", "permits", "weight", "n"],
    ),
    row(
        Word::When,
        "when",
        Of::All,
        "when = user.is_guest()",
        &["if", "condition", "unless", "skip"],
    ),
    row(
        Word::Wait,
        "wait",
        Of::All,
        "wait = \"500ms\"",
        &["timeout", "max_wait", "up_to", "isAbort", "timeoutUnit"],
    ),
    row(
        Word::Limiter,
        "limiter",
        Of::All,
        "limiter = self.limits",
        &["limits", "with", "using", "store"],
    ),
    row(
        Word::Fallback,
        "fallback",
        Of::All,
        "fallback = on_limited",
        &["or_else", "otherwise", "on_reject"],
    ),
    row(
        Word::PassArgs,
        "pass_args",
        Of::All,
        "pass_args",
        &["args", "with_args"],
    ),
    row(
        Word::PassRejection,
        "pass_rejection",
        Of::All,
        "pass_rejection",
        &["rejection", "with_rejection"],
    ),
    row(Word::Deadline, "deadline", Of::All, "deadline = \"20ms\"", &[]),
    row(
        Word::OnStoreFailure,
        "on_store_failure",
        Of::All,
        "on_store_failure = fail_open",
        &["on_failure", "on_error"],
    ),
    row(
        Word::Lease,
        "lease",
        Of::Leased,
        "lease = \"1s\"",
        &["borrow", "prefetch", "max_age"],
    ),
    row(
        Word::Crate,
        "crate",
        Of::All,
        "crate = crate::limits",
        &["path", "krate"],
    ),
    row(
        Word::CountIf,
        "count_if",
        Of::All,
        "count_if = Result::is_err",
        &["deduct_when", "count_when", "charge_if", "predicate"],
    ),
    row(
        Word::Policy,
        "policy",
        Of::All,
        "policy = \"search\"",
        &["named", "policy_name"],
    ),
    row(
        Word::Except,
        "except",
        Of::All,
        "except(preview)",
        &["exclude", "without", "not"],
    ),
    row(
        Word::Paced,
        "paced",
        Of::Funnels,
        "paced",
        &["smooth", "delay", "shape"],
    ),
    row(
        Word::Kind,
        "kind",
        Of::Windows,
        "kind = counter",
        &["algorithm", "type", "mode"],
    ),
    row(
        Word::Align,
        "align",
        Of::Windows,
        "align = \"utc\"",
        &["aligned", "offset", "timezone", "tz"],
    ),
    row(
        Word::Max,
        "max",
        Of::Concurrency,
        "max = 4",
        &["limit", "capacity", "concurrency", "in_flight", "permits", "size"],
    ),
];

/// What goes with a `policy`, which says everything else itself.
pub(crate) const BESIDE_POLICY: &[Word] = &[
    Word::Policy,
    Word::Key,
    Word::Group,
    Word::Need,
    Word::When,
    Word::Wait,
    Word::Limiter,
    Word::Fallback,
    Word::PassArgs,
    Word::PassRejection,
    Word::CountIf,
    Word::Except,
    Word::Crate,
];

const fn row(
    word: Word,
    text: &'static str,
    of: Of,
    example: &'static str,
    also: &'static [&'static str],
) -> Row {
    Row {
        word,
        text,
        of,
        example,
        also,
    }
}

impl Row {
    pub(crate) fn is_flag(&self) -> bool {
        self.text == self.example
    }

    /// Whether it is given names in parentheses.
    pub(crate) fn is_list(&self) -> bool {
        self.example.ends_with(')') && !self.example.contains('=')
    }

    pub(crate) fn is_of(&self, kind: Kind) -> bool {
        match self.of {
            Of::All => true,
            Of::Buckets => matches!(kind, Kind::Token | Kind::Funnel),
            Of::Windows => kind == Kind::Window,
            Of::Funnels => kind == Kind::Funnel,
            Of::Concurrency => kind == Kind::Concurrency,
            Of::Leased => kind != Kind::Window,
        }
    }
}

impl Word {
    pub(crate) fn text(self) -> &'static str {
        self.row().map_or("", |row| row.text)
    }

    /// How the argument is written.
    pub(crate) fn example(self) -> &'static str {
        self.row().map_or("", |row| row.example)
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.word == self)
    }
}
