//! The last call of each policy, and the keys that used most of their limits, for the admin UI.
//!
//! Each policy has a table per minute with the keys that were denied or used at least half of their
//! limit. A full table replaces its least denied key and states the count of that key as the error
//! of the new one (space-saving). A decision never waits for the record: a call whose shard is
//! locked is not recorded. The memory is bounded by [`MAX_KEYS`] and [`MAX_POLICIES`]. Tests:
//! `activity/tests.rs`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use limiter_core::Origin;

use crate::key_text::recorded;

const SHARDS: usize = 16;
/// The largest number of keys of a policy in one minute.
const KEYS_PER_MINUTE: usize = 20;
/// The largest number of keys of one shard in all minutes.
const MAX_KEYS: usize = 2_048;
/// The largest number of policies of one shard.
const MAX_POLICIES: usize = 256;
/// The length of a kept rule in characters.
const KEPT_CHARS: usize = 255;
/// Keys below this usage are not kept.
const MIN_USED_PERCENT: u8 = 50;
/// Keys above this usage are nearly full.
const NEARLY_FULL_PERCENT: u8 = 80;
const MICROS_PER_MINUTE: i64 = 60_000_000;
/// Minutes without a denial are kept for this number of minutes.
const FULL_KEPT: i64 = 10;
/// Denials are kept for this number of minutes.
const DENIED_KEPT: i64 = 24 * 60;

/// A decision about one limit.
#[derive(Clone, Copy, Debug)]
pub struct DecidedCall<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The address of the client, as far as it is known.
    pub peer: Option<IpAddr>,
    /// True if the call passed.
    pub is_allowed: bool,
    /// The remaining permits and the limit; `None` if the decision has no numbers.
    pub numbers: Option<(u64, u64)>,
    /// The origin of the decision.
    pub origin: Origin,
}

/// The key of a call, for keys that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCall {
    /// The parts of the key, separated by ` / `.
    pub key: String,
    /// The rule that led to the policy; `None` if the client named the policy.
    pub rule: Option<String>,
    /// The revision of the registry.
    pub revision: u64,
}

/// The last call of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCall {
    /// The time in microseconds.
    pub at: i64,
    /// The address of the client.
    pub peer: Option<IpAddr>,
}

/// The decisions about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveKey {
    /// The parts of the key, separated by ` / `; of a long key the beginning and a hash.
    pub key: String,
    /// The number of denied calls, which is too high by `error` at most.
    pub denied: u64,
    /// The error of `denied`.
    pub error: u64,
    /// The highest usage of the limit in percent.
    pub used_percent: u8,
    /// The rule of the last denial, or else of the last call.
    pub rule: Option<String>,
    /// The revision of the registry at the last denial; `None` without one.
    pub revision: Option<u64>,
    /// The origin of the last denial.
    pub origin: Option<Origin>,
    /// The time of the first recorded call.
    pub first_at: i64,
    /// The time of the last recorded call.
    pub last_at: i64,
}

/// The usage of the limits of a policy in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Utilisation {
    /// The start of the minute in microseconds.
    pub at: i64,
    /// The highest usage of any key in percent.
    pub highest_percent: u8,
    /// The key with this usage; `None` if it is not kept.
    pub fullest: Option<String>,
    /// The number of keys that used more than 80 % of their limit.
    pub nearly_full: usize,
    /// True if there can be more such keys, because the table of the minute was full.
    pub is_lower_bound: bool,
}

#[derive(Debug)]
struct MinuteTable {
    minute: i64,
    keys: Vec<ActiveKey>,
    /// True if a key was left out or replaced.
    is_incomplete: bool,
}

#[derive(Debug, Default)]
struct PolicyActivity {
    last_call: Option<LastCall>,
    /// The newest minute with a call, and the highest usage of any key in it.
    peak: Option<(i64, u8)>,
    /// The oldest first.
    minutes: VecDeque<MinuteTable>,
}

type Shard = HashMap<String, PolicyActivity>;

/// The decisions of the gateway of this process about single keys.
#[derive(Debug)]
pub struct KeyActivity {
    since: i64,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

impl KeyActivity {
    /// Creates an empty record that starts at a time.
    #[must_use]
    pub fn new(since: i64) -> Self {
        Self {
            since,
            hasher: RandomState::new(),
            shards: Default::default(),
        }
    }

    /// Returns the time since which decisions are recorded.
    #[must_use]
    pub fn since(&self) -> i64 {
        self.since
    }

    /// Records a decision. `kept` is called if the key is kept.
    pub fn record(&self, call: DecidedCall<'_>, kept: impl FnOnce() -> KeptCall, now: i64) {
        let mut shard = match self.shard(call.policy).try_lock() {
            Ok(shard) => shard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !shard.contains_key(call.policy) && shard.len() >= MAX_POLICIES && !remove_idle(&mut shard, now) {
            return;
        }
        let policy = match shard.get_mut(call.policy) {
            Some(policy) => policy,
            None => shard.entry(call.policy.to_owned()).or_default(),
        };
        policy.last_call = Some(LastCall {
            at: now,
            peer: call.peer,
        });
        let used_percent = call.numbers.map_or(0, used_percent);
        policy.record_peak(used_percent, minute_of(now));
        if call.is_allowed && used_percent < MIN_USED_PERCENT {
            return;
        }
        let is_new_minute = policy.add((call, used_percent), kept, now);
        if is_new_minute {
            remove_oldest(&mut shard);
        }
    }

    /// Returns the names of the policies that were called.
    #[must_use]
    pub fn policies(&self) -> Vec<String> {
        let shards = self.shards.iter();
        let names = shards.flat_map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.keys().cloned().collect::<Vec<_>>()
        });
        names.collect()
    }

    /// Returns the last call of a policy.
    #[must_use]
    pub fn last_call(&self, policy: &str) -> Option<LastCall> {
        self.locked(policy).get(policy)?.last_call
    }

    /// Returns the usage of the limits of a policy in the newest minute with a call.
    #[must_use]
    pub fn utilisation(&self, policy: &str) -> Option<Utilisation> {
        let shard = self.locked(policy);
        let of_policy = shard.get(policy)?;
        let (minute, highest_percent) = of_policy.peak?;
        let table = of_policy.minutes.iter().find(|table| table.minute == minute);
        let keys = table.iter().flat_map(|table| &table.keys);
        let fullest = keys.clone().find(|key| key.used_percent == highest_percent);
        let is_nearly_full = |key: &&ActiveKey| key.used_percent > NEARLY_FULL_PERCENT;
        // A table without a kept key does not exist, and one of a full shard can be removed.
        let is_missing = table.is_none() && highest_percent > NEARLY_FULL_PERCENT;
        Some(Utilisation {
            at: minute.saturating_mul(MICROS_PER_MINUTE),
            highest_percent,
            fullest: fullest.map(|key| key.key.clone()),
            nearly_full: keys.filter(is_nearly_full).count(),
            is_lower_bound: is_missing || table.is_some_and(|table| table.is_incomplete),
        })
    }

    /// Returns the keys of a policy from a time to a later one: the most denied first, then the
    /// fullest. Whole minutes are counted.
    #[must_use]
    pub fn keys(&self, policy: &str, (from, to): (i64, i64)) -> Vec<ActiveKey> {
        let shard = self.locked(policy);
        let Some(of_policy) = shard.get(policy) else {
            return Vec::new();
        };
        let minutes = minute_of(from)..=minute_of(to);
        let tables = of_policy.minutes.iter();
        let mut merged: BTreeMap<&str, ActiveKey> = BTreeMap::new();
        for key in tables
            .filter(|of| minutes.contains(&of.minute))
            .flat_map(|of| &of.keys)
        {
            match merged.get_mut(key.key.as_str()) {
                Some(sum) => sum.add(key),
                None => {
                    merged.insert(&key.key, key.clone());
                }
            }
        }
        let mut keys: Vec<ActiveKey> = merged.into_values().collect();
        keys.sort_by_key(|key| std::cmp::Reverse((key.denied, key.used_percent)));
        keys
    }

    fn shard(&self, policy: &str) -> &Mutex<Shard> {
        let hash = self.hasher.hash_one(policy);
        let number = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        // The number is below the length.
        self.shards.get(number).unwrap_or(&self.shards[0])
    }

    fn locked(&self, policy: &str) -> MutexGuard<'_, Shard> {
        self.shard(policy).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PolicyActivity {
    /// Records the usage of a key in a minute. A clock that goes back counts for the newest minute.
    fn record_peak(&mut self, used_percent: u8, minute: i64) {
        match &mut self.peak {
            Some((newest, highest)) if minute <= *newest => *highest = used_percent.max(*highest),
            peak => *peak = Some((minute, used_percent)),
        }
    }

    /// Counts a call of a key. Returns whether this is the first one of its minute.
    fn add(
        &mut self,
        (call, used_percent): (DecidedCall<'_>, u8),
        kept: impl FnOnce() -> KeptCall,
        now: i64,
    ) -> bool {
        let minute = minute_of(now);
        let is_new = self.minutes.back().is_none_or(|last| last.minute < minute);
        if is_new {
            self.prune(minute);
            self.minutes.push_back(MinuteTable {
                minute,
                keys: Vec::new(),
                is_incomplete: false,
            });
        }
        // The newest table exists. A clock that goes back uses it as well.
        if let Some(table) = self.minutes.back_mut() {
            let KeptCall { key, rule, revision } = kept();
            table.add(ActiveKey {
                key: recorded(&key).into_owned(),
                denied: u64::from(!call.is_allowed),
                error: 0,
                used_percent,
                rule: rule.map(|rule| rule.chars().take(KEPT_CHARS).collect()),
                revision: (!call.is_allowed).then_some(revision),
                origin: (!call.is_allowed).then_some(call.origin),
                first_at: now,
                last_at: now,
            });
        }
        is_new
    }

    fn prune(&mut self, minute: i64) {
        self.minutes.retain_mut(|table| {
            if table.minute + FULL_KEPT < minute {
                table.keys.retain(|key| key.denied > 0);
            }
            !table.keys.is_empty() && table.minute + DENIED_KEPT >= minute
        });
    }
}

impl MinuteTable {
    fn add(&mut self, call: ActiveKey) {
        if let Some(known) = self.keys.iter_mut().find(|known| known.key == call.key) {
            known.add(&call);
            return;
        }
        if self.keys.len() < KEYS_PER_MINUTE {
            self.keys.push(call);
            return;
        }
        self.is_incomplete = true;
        let least = self
            .keys
            .iter_mut()
            .min_by_key(|key| (key.denied, key.used_percent));
        let Some(least) = least else { return };
        match call.denied {
            // A full key replaces one that was denied as rarely and used less.
            0 if least.denied > 0 || least.used_percent >= call.used_percent => {}
            0 => *least = call,
            denied => {
                *least = ActiveKey {
                    denied: least.denied.saturating_add(denied),
                    error: least.denied,
                    ..call
                }
            }
        }
    }
}

impl ActiveKey {
    fn add(&mut self, other: &Self) {
        self.denied = self.denied.saturating_add(other.denied);
        self.error = self.error.saturating_add(other.error);
        self.used_percent = self.used_percent.max(other.used_percent);
        self.first_at = self.first_at.min(other.first_at);
        if other.denied > 0 && (self.revision.is_none() || other.last_at >= self.last_at) {
            self.rule.clone_from(&other.rule);
            (self.revision, self.origin) = (other.revision, other.origin);
        }
        self.last_at = self.last_at.max(other.last_at);
    }
}

/// Removes the oldest minutes of a shard that has too many keys.
fn remove_oldest(shard: &mut Shard) {
    let count = |shard: &Shard| -> usize {
        let tables = shard.values().flat_map(|of| &of.minutes);
        tables.map(|table| table.keys.len()).sum()
    };
    while count(shard) > MAX_KEYS {
        let oldest = shard
            .values_mut()
            .filter(|of| !of.minutes.is_empty())
            .min_by_key(|of| of.minutes.front().map(|table| table.minute));
        match oldest {
            Some(policy) => policy.minutes.pop_front(),
            None => return,
        };
    }
}

/// Removes the policy of a shard that was called least recently, such as one that was deleted,
/// unless all of them were called within the last minutes. Returns whether there was one.
fn remove_idle(shard: &mut Shard, now: i64) -> bool {
    let called_at = |of: &PolicyActivity| of.last_call.map_or(i64::MIN, |call| call.at);
    let idle = shard.iter().min_by_key(|(_, of)| called_at(of));
    let idle = idle.filter(|(_, of)| minute_of(called_at(of)) + FULL_KEPT < minute_of(now));
    let name = idle.map(|(name, _)| name.clone());
    name.is_some_and(|name| shard.remove(&name).is_some())
}

fn minute_of(at: i64) -> i64 {
    at.div_euclid(MICROS_PER_MINUTE)
}

/// Returns the used part of a limit in percent.
fn used_percent((remaining, limit): (u64, u64)) -> u8 {
    let used = limit.saturating_sub(remaining);
    let percent = u128::from(used) * 100 / u128::from(limit.max(1));
    u8::try_from(percent).unwrap_or(100)
}

#[cfg(test)]
mod tests;
