//! The script, and how it is called: by its hash, and by its text where the server does not know
//! it.

pub(crate) mod input;
pub(crate) mod reply;
pub(crate) mod wire;

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use bb8_redis::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use sha1::{Digest, Sha1};

use crate::redis::call_deadline::CallDeadline;

/// The digits of a number of keys.
const LONGEST_COUNT: usize = 20;

/// A script, and the hash by which a server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    hash: OnceLock<String>,
}

/// Decides.
///
/// A script begins anew with each call, so every function in it costs time even where it is not
/// called. What few decisions need therefore stands in one function, which sees nothing of what is
/// around it and is called when it is first needed.
pub(crate) static DECIDE: Script = Script::new(concat!(
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
    "local function new_window_decider(now, least_ttl)\n",
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/wire.lua"),
    include_str!("script/lua/window_fast_path.lua"),
    "end\n",
    include_str!("script/lua/driver.lua"),
));

/// Gives back and lends.
pub(crate) static TOKEN_LEASE: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/wire.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/arithmetic.lua"),
    include_str!("script/lua/leased_level.lua"),
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

/// Keeps the registry of policies.
#[cfg(feature = "registry")]
pub(crate) static REGISTRY: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/registry.lua"),
));

/// Counts who holds permits.
pub(crate) static CONCURRENCY: Script = Script::new(concat!(
    include_str!("script/lua/prelude.lua"),
    include_str!("script/lua/clock.lua"),
    include_str!("script/lua/concurrency.lua"),
));

/// Keeps detached reservations.
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

    /// Computed once.
    fn hash(&self) -> &str {
        self.hash.get_or_init(|| {
            Sha1::digest(self.source)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        })
    }
}

/// Whether a server says that it does not know the script, which proves that nothing has run.
pub(crate) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// One call of a script.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'static Script,
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
            script,
            keys: keys.into_iter().map(Into::into).collect(),
            plan,
            wait: CallDeadline::after(deadline),
        }
    }

    /// On behalf of somebody who has waited before the call was made.
    pub(crate) fn with_deadline(self, wait: CallDeadline) -> Self {
        Self { wait, ..self }
    }

    /// Names the script.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", self.script.hash())
    }

    /// Brings the script along.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.source)
    }

    /// The first key; all of them lie in one slot.
    pub(crate) fn key(&self) -> &str {
        self.keys.first().map_or("", |key| key)
    }

    /// How long the caller waits.
    pub(crate) fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        // In one piece: every call is one, and would grow five times.
        let texts = name.len() + script.len() + LONGEST_COUNT + self.plan.len();
        let length = self.keys.iter().fold(texts, |length, key| length + key.len());
        let mut command = Cmd::with_capacity(4 + self.keys.len(), length);
        command.arg(name).arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(&**key);
        }
        command.arg(&self.plan);
        command
    }
}
