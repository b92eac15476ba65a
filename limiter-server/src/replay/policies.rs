//! Decides calls by the policies of one file, under a clock that is set to the time of each call.
//!
//! An in-process limiter decides, so that a replay has the answers of a server. Tests:
//! `tests/replay/agreement.rs` compares the result with the limiter on random traces.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

use limiter_core::registry::OnUnknownPolicy;
use limiter_core::{Enforcement, Key, Limiter, ManualClock, Timestamp};

use crate::gateway::rules::{RuleSet, key_of};
use crate::replay::PolicyChoice;
use crate::replay::keys::KeyTable;
use crate::replay::line::KeyField;
use crate::replay::outcome::{Outcome, Verdict, outcome, settled, strictest};
use crate::replay::report::{PolicyReport, PolicySetReport, RankedKey};
use crate::replay::series::Series;
use crate::replay::source::Call;
use crate::replay::waits::Waits;
use crate::serve::policies;

/// The number of keys in a list of the report.
const LISTED: usize = 20;

/// The policies of one file and the counts of their decisions.
#[derive(Debug)]
pub(super) struct PolicySet {
    file: String,
    clock: ManualClock,
    limiter: Limiter,
    selection: Selection,
    max_keys: usize,
    counts: Vec<PolicyCounts>,
    by_name: HashMap<String, usize>,
    skipped: Vec<String>,
    /// The policies of other apps.
    other_apps: Vec<String>,
    lines: LineCounts,
    /// The policy and the key of the last line, if a rule matched.
    last_match: Option<(usize, u64)>,
}

#[derive(Debug)]
enum Selection {
    /// All of these policies.
    Each(Vec<String>),
    Rules {
        rules: RuleSet,
        domain: String,
        entries: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct LineCounts {
    admitted: u64,
    denied: u64,
    undecided: u64,
    unmatched: u64,
    not_configured: u64,
}

#[derive(Debug)]
struct PolicyCounts {
    name: String,
    admitted: u64,
    denied: u64,
    undecided: u64,
    keys: KeyTable,
    series: Series,
    waits: Waits,
}

impl PolicySet {
    pub(super) fn open(
        path: &Path,
        choice: &PolicyChoice,
        key: &[KeyField],
        app: Option<&str>,
        max_keys: usize,
    ) -> Result<Self, String> {
        let registry = policies::read(path)?;
        let file = path.display().to_string();
        let mut skipped = Vec::new();
        let is_concurrency = |name: &str| {
            let entry = registry.get(name);
            entry.is_some_and(|entry| entry.policy().algorithm_name() == "concurrency")
        };
        let is_for_app = |name: &str| registry.get(name).is_some_and(|entry| entry.is_for(app));
        let selection = match choice {
            PolicyChoice::Named(name) if registry.get(name).is_none() => {
                let names = registry.names().join(", ");
                return Err(format!("{file} has no policy `{name}`, expected one of {names}"));
            }
            PolicyChoice::Named(name) if !is_for_app(name) => {
                let entry = registry.get(name);
                let apps = entry.iter().flat_map(|entry| entry.apps()).flatten();
                let apps = apps.collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "{file}: `{name}` is for the apps {apps}, expected one of them in --app"
                ));
            }
            PolicyChoice::Named(name) if is_concurrency(name) => {
                return Err(format!(
                    "{file}: `{name}` is a concurrency policy, expected a policy of rates: \
                     a log does not state when calls end"
                ));
            }
            PolicyChoice::Named(name) => Selection::Each(vec![name.clone()]),
            PolicyChoice::Each => {
                let all = registry.names().into_iter().filter(|name| is_for_app(name));
                let (concurrency, rates): (Vec<_>, Vec<_>) = all.partition(|name| is_concurrency(name));
                skipped = concurrency;
                Selection::Each(rates)
            }
            PolicyChoice::Rules { domain } => Selection::Rules {
                rules: RuleSet::new(registry.rules()),
                domain: domain.clone(),
                entries: key.iter().map(|field| field.entry.clone()).collect(),
            },
        };
        let names = match &selection {
            Selection::Each(names) if names.is_empty() => {
                return Err(format!("{file} has no policy of rates to replay"));
            }
            Selection::Rules { rules, .. } if rules.rules().is_empty() => {
                return Err(format!(
                    "{file} has no rules, expected [[rule]] or a choice of --policy"
                ));
            }
            Selection::Each(names) => names.clone(),
            Selection::Rules { .. } => Vec::new(),
        };
        let other_apps = registry
            .names()
            .into_iter()
            .filter(|name| !is_for_app(name))
            .collect();
        let clock = ManualClock::new();
        let mut builder = Limiter::in_process()
            .clock(&clock)
            .max_keys(max_keys.saturating_mul(registry.names().len().max(1)))
            .registry(&registry)
            .on_unknown_policy(OnUnknownPolicy::Deny)
            // The environment of the replay does not change its result.
            .enforcement(Enforcement::Enforce);
        if let Some(app) = app {
            builder = builder.app(app);
        }
        let mut set = Self {
            file,
            clock,
            limiter: builder.build(),
            selection,
            max_keys,
            counts: Vec::new(),
            by_name: HashMap::new(),
            skipped,
            other_apps,
            lines: LineCounts::default(),
            last_match: None,
        };
        for name in names {
            set.place(&name);
        }
        Ok(set)
    }

    /// Decides a line by all policies that apply to it.
    pub(super) fn decide(&mut self, call: &Call) -> Verdict {
        self.clock.set(Timestamp::from_micros(call.at));
        let verdict = match &self.selection {
            Selection::Each(_) => self.decide_each(call),
            Selection::Rules { .. } => self.decide_by_rule(call),
        };
        match verdict {
            Verdict::Admitted => self.lines.admitted += 1,
            Verdict::Denied => self.lines.denied += 1,
            Verdict::Undecided => self.lines.undecided += 1,
        }
        verdict
    }

    fn decide_each(&mut self, call: &Call) -> Verdict {
        let key = key_of(call.key());
        let hash = hash_of(&key);
        let mut verdict = Verdict::Admitted;
        for counts in &mut self.counts {
            let check = self.limiter.named(&counts.name).check(&key).cost(call.cost);
            // A policy that has ended decides nothing.
            let Some(outcome) = outcome(check) else {
                continue;
            };
            counts.record(call.at, hash, outcome, || name_of(call.key()));
            verdict = strictest(verdict, outcome.verdict);
        }
        verdict
    }

    fn decide_by_rule(&mut self, call: &Call) -> Verdict {
        let Selection::Rules {
            rules,
            domain,
            entries,
        } = &self.selection
        else {
            return Verdict::Undecided;
        };
        self.last_match = None;
        let entries: Vec<(&str, &str)> = entries.iter().map(String::as_str).zip(call.key()).collect();
        let Some(found) = rules.find(domain, &entries) else {
            self.lines.unmatched += 1;
            return Verdict::Admitted;
        };
        let Ok(policy) = self.limiter.policy(&found.policy, &found.key) else {
            self.lines.not_configured += 1;
            return Verdict::Admitted;
        };
        let outcome = match found.settles() {
            false => outcome(self.limiter.check(&policy, &found.key).cost(call.cost)),
            true => Some(settled(self.limiter.charge(&policy, &found.key).cost(call.cost))),
        };
        let outcome = outcome.unwrap_or(Outcome::UNDECIDED);
        let hash = hash_of(&found.key);
        let name = name_of(found.values.iter().map(String::as_str));
        let place = self.by_name.get(policy.name()).copied();
        let place = place.unwrap_or_else(|| self.place(policy.name()));
        self.last_match = Some((place, hash));
        if let Some(counts) = self.counts.get_mut(place) {
            counts.record(call.at, hash, outcome, || name);
        }
        outcome.verdict
    }

    /// Returns the policy and the hash of the key of the last line, if a rule matched.
    pub(super) fn last_match(&self) -> Option<(&str, u64)> {
        let (place, hash) = self.last_match?;
        Some((&self.counts.get(place)?.name, hash))
    }

    /// Adds a policy to the counts.
    fn place(&mut self, name: &str) -> usize {
        self.by_name.insert(name.to_owned(), self.counts.len());
        self.counts.push(PolicyCounts {
            name: name.to_owned(),
            admitted: 0,
            denied: 0,
            undecided: 0,
            keys: KeyTable::new(self.max_keys),
            series: Series::default(),
            waits: Waits::default(),
        });
        self.counts.len() - 1
    }

    /// Returns the counts; `other` are the policies that are compared.
    pub(super) fn report(&self, other: Option<&Self>) -> PolicySetReport {
        let policies = self.counts.iter().map(|counts| {
            let of_other = other.and_then(|other| {
                let place = other.by_name.get(&counts.name)?;
                other.counts.get(*place)
            });
            let entry = self.limiter.registry().get(&counts.name);
            let policy = entry.as_ref().map(|entry| entry.policy());
            counts.report(policy, of_other)
        });
        PolicySetReport {
            file: self.file.clone(),
            admitted: self.lines.admitted,
            denied: self.lines.denied,
            undecided: self.lines.undecided,
            unmatched: self.lines.unmatched,
            not_configured: self.lines.not_configured,
            skipped: self.skipped.clone(),
            other_apps: self.other_apps.clone(),
            policies: policies.collect(),
        }
    }
}

impl PolicyCounts {
    fn record(&mut self, at: u64, hash: u64, outcome: Outcome, name: impl FnOnce() -> String) {
        let denied = match outcome.verdict {
            Verdict::Undecided => {
                self.undecided += 1;
                return;
            }
            Verdict::Denied => true,
            Verdict::Admitted => false,
        };
        self.admitted += u64::from(!denied);
        self.denied += u64::from(denied);
        match outcome.wait {
            Some(wait) => self.waits.record(wait),
            None => self.waits.never += u64::from(denied),
        }
        let wait = outcome.wait.unwrap_or_default().as_micros();
        let wait = u64::try_from(wait).unwrap_or(u64::MAX);
        self.series.record(at, denied);
        self.keys.record(hash, denied, wait, name);
    }

    fn report(&self, policy: Option<&limiter_core::Policy>, other: Option<&Self>) -> PolicyReport {
        let compared = |keys: Vec<RankedKey>| -> Vec<RankedKey> {
            let Some(other) = other else { return keys };
            let keys = keys.into_iter().map(|key| RankedKey {
                denied_by_other: Some(other.keys.get(key.hash).map_or(0, |counts| counts.denied.into())),
                ..key
            });
            keys.collect()
        };
        PolicyReport {
            name: self.name.clone(),
            policy: policy.map(ToString::to_string).unwrap_or_default(),
            enforcement: policy
                .map(|policy| policy.enforcement())
                .unwrap_or_default()
                .to_string(),
            admitted: self.admitted,
            denied: self.denied,
            undecided: self.undecided,
            keys: self.keys.keys(),
            denied_keys: self.keys.denied_keys(),
            merged_keys: self.keys.merged(),
            waits: self.waits.clone(),
            most_denied: compared(self.keys.most_denied(LISTED)),
            longest_waits: compared(self.keys.longest_waits(LISTED)),
            over_time: self.series.clone(),
        }
    }
}

/// Returns the hash of a key, the same in each replay.
pub(super) fn hash_of(key: &Key<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Returns the values of a key for a reader.
fn name_of<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut name = String::new();
    for (number, value) in values.enumerate() {
        if number > 0 {
            name.push_str(", ");
        }
        name.push_str(value);
    }
    if name.is_empty() {
        name.push_str("(all calls)");
    }
    name
}
