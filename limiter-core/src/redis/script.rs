//! The scripts and their calls.
//!
//! Each script is composed of Lua files at compile time and called by its hash, or by its source if
//! the server does not have it. A call across slots declares one key and passes all keys as
//! arguments. A call can also be a single command, so that it needs fewer permissions.
//!
//! Invariant: a call by source follows only a reply that the script is unknown, which proves that
//! nothing was executed. Tests: `tests/scripts/servers.rs`, `tests/cluster_batches.rs`,
//! `tests/permissions.rs`.

pub(crate) mod reply;
pub(crate) mod wire;

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use bb8_redis::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use sha1::{Digest, Sha1};

use crate::support::real_time::CallDeadline;

/// Maximum number of digits of a key count.
const LONGEST_COUNT: usize = 20;

/// A script and its SHA-1 hash.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    hash: OnceLock<String>,
}

/// The source of the decision script.
///
/// Redis runs the whole script at each call, so defining a function costs time even if it is not
/// called. Code that few decisions need is therefore inside one function that uses no local of the
/// script and is defined and called when it is first needed.
macro_rules! decide_source {
    () => {
        concat!(
            include_str!("script/lua/prelude.lua"),
            include_str!("script/lua/wire.lua"),
            include_str!("script/lua/clock.lua"),
            "local function new_deciders(now, least_ttl)\n",
            include_str!("script/lua/prelude.lua"),
            include_str!("script/lua/wire.lua"),
            include_str!("script/lua/arithmetic.lua"),
            include_str!("script/lua/leased_level.lua"),
            include_str!("script/lua/level.lua"),
            include_str!("script/lua/sliding_window.lua"),
            include_str!("script/lua/counted_windows.lua"),
            include_str!("script/lua/decide.lua"),
            "end\n",
            "local function new_window_deciders(now, least_ttl)\n",
            include_str!("script/lua/prelude.lua"),
            include_str!("script/lua/wire.lua"),
            include_str!("script/lua/window_fast_path.lua"),
            "end\n",
            "local function new_several_deciders(now, least_ttl, load_window, settle_window)\n",
            include_str!("script/lua/prelude.lua"),
            include_str!("script/lua/wire.lua"),
            include_str!("script/lua/several_limits.lua"),
            "end\n",
            include_str!("script/lua/driver.lua"),
        )
    };
}

/// The decision script.
pub(crate) static DECIDE: Script = Script::new(decide_source!());

/// The decision script for keys in several slots of one cluster node. Redis 7 and Valkey check at
/// each command that the node serves the slot of its key; earlier servers reject the first line.
pub(crate) static DECIDE_ACROSS_SLOTS: Script = Script::new(concat!(
    "#!lua flags=allow-cross-slot-keys\n",
    include_str!("script/lua/across_slots.lua"),
    decide_source!(),
));

/// Refunds, charges and leases tokens.
pub(crate) static TOKEN_LEASE: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/wire.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/arithmetic.lua"),
    include_str!("script/lua/leased_level.lua"),
    include_str!("script/lua/lease_report.lua"),
    include_str!("script/lua/sliding_window.lua"),
    include_str!("script/lua/counted_windows.lua"),
    include_str!("script/lua/token_lease.lua"),
));

/// Counts replicas.
pub(crate) static HEARTBEAT: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/heartbeat.lua"),
));

/// Reads and publishes the registry of policies.
#[cfg(feature = "registry")]
pub(crate) static REGISTRY: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/registry.lua"),
));

/// Lists the processes that follow the registry.
#[cfg(feature = "registry")]
pub(crate) static SUBSCRIBERS: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/subscribers.lua"),
));

/// Adds up the usage of all processes.
pub(crate) static USAGE: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/usage.lua"),
));

/// Counts the holders of concurrency permits.
pub(crate) static CONCURRENCY: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/concurrency.lua"),
));

/// Renews the leases of named holders.
pub(crate) static HOLDER_LEASE: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/wire.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/arithmetic.lua"),
    include_str!("script/lua/leased_level.lua"),
    include_str!("script/lua/lease_report.lua"),
    include_str!("script/lua/holder_lease.lua"),
));

/// Stores detached reservations.
pub(crate) static RESERVATION: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/reservation.lua"),
));

impl Script {
    const fn new(source: &'static str) -> Self {
        let hash = OnceLock::new();
        Self { source, hash }
    }

    /// Returns the hash, which is computed once.
    fn hash(&self) -> &str {
        self.hash.get_or_init(|| {
            Sha1::digest(self.source)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        })
    }
}

/// Returns whether a server reports that it does not have the script, which proves that nothing was
/// executed.
pub(crate) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The program that a call runs.
#[derive(Debug)]
enum Program<'a> {
    Script(&'static Script),
    /// A script whose keys are in several slots of one node.
    AcrossSlots(&'static Script),
    /// The words of a command.
    #[cfg_attr(
        not(feature = "registry"),
        expect(dead_code, reason = "only the registry sends single commands")
    )]
    Command(&'a [&'a str]),
}

/// One call of a script, or one command.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    program: Program<'a>,
    keys: Vec<Cow<'a, str>>,
    plan: Vec<u8>,
    wait: CallDeadline,
}

impl<'a> Call<'a> {
    pub(crate) fn new<K: Into<Cow<'a, str>>>(
        script: &'static Script,
        keys: impl IntoIterator<Item = K>,
        plan: Vec<u8>,
        deadline: Duration,
    ) -> Self {
        Self {
            program: Program::Script(script),
            keys: keys.into_iter().map(Into::into).collect(),
            plan,
            wait: CallDeadline::after(deadline),
        }
    }

    /// Creates a call of a script whose keys are in several slots of one node.
    pub(crate) fn across_slots<K: Into<Cow<'a, str>>>(
        script: &'static Script,
        keys: impl IntoIterator<Item = K>,
        plan: Vec<u8>,
        deadline: Duration,
    ) -> Self {
        let program = Program::AcrossSlots(script);
        Self {
            program,
            ..Self::new(script, keys, plan, deadline)
        }
    }

    /// Creates a call of one command, sent to the node of a key.
    #[cfg(feature = "registry")]
    pub(crate) fn of_command(words: &'a [&'a str], key: &'a str, deadline: Duration) -> Self {
        Self {
            program: Program::Command(words),
            keys: vec![key.into()],
            plan: Vec::new(),
            wait: CallDeadline::after(deadline),
        }
    }

    /// Sets the deadline of a caller that has waited before the call was created.
    pub(crate) fn with_deadline(self, wait: CallDeadline) -> Self {
        Self { wait, ..self }
    }

    /// Builds the command, which names a script by its hash.
    pub(crate) fn by_hash(&self) -> Cmd {
        match self.program {
            Program::Script(script) | Program::AcrossSlots(script) => {
                self.script_command("EVALSHA", script.hash())
            }
            Program::Command(words) => plain_command(words),
        }
    }

    /// Builds the command, which contains the source of a script.
    pub(crate) fn by_text(&self) -> Cmd {
        match self.program {
            Program::Script(script) | Program::AcrossSlots(script) => {
                self.script_command("EVAL", script.source)
            }
            Program::Command(words) => plain_command(words),
        }
    }

    /// Returns the first key; all keys are on one node.
    pub(crate) fn key(&self) -> &str {
        self.keys.first().map_or("", |key| key)
    }

    /// Returns the deadline of the caller.
    pub(crate) fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    fn script_command(&self, name: &str, script: &str) -> Cmd {
        // Allocated in one piece, since it would otherwise grow five times in every call.
        let texts = name.len() + script.len() + LONGEST_COUNT + self.plan.len();
        let length = self.keys.iter().fold(texts, |length, key| length + key.len());
        let mut command = Cmd::with_capacity(5 + self.keys.len(), length + self.key().len());
        // All declared keys must be in one slot. A call across slots declares one and adds all.
        let (declared, added) = match self.program {
            Program::AcrossSlots(_) => (self.keys.get(..1).unwrap_or_default(), &*self.keys),
            _ => (&*self.keys, [].as_slice()),
        };
        command.arg(name).arg(script).arg(declared.len());
        for key in declared {
            command.arg(&**key);
        }
        command.arg(&self.plan);
        for key in added {
            command.arg(&**key);
        }
        command
    }
}

fn plain_command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}
