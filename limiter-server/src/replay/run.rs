//! Runs a replay: reads calls in the order of their times, decides them and counts the results.
//!
//! One pass over the merged calls serves all results: the policies of the file, those of a second
//! file for comparison, and the suggestion. Logs can thus be larger than memory, and standard input
//! can be replayed.
//!
//! Invariant: both files decide the same calls in one order, so each difference is due to the
//! policies. Tests: `tests/replay/command.rs`, `tests/replay/agreement.rs`,
//! `tests/replay_scale.rs`.

use std::path::Path;
use std::rc::Rc;

use crate::gateway::rules::key_of;
use crate::replay::input::ByteCount;
use crate::replay::line::FieldNames;
use crate::replay::merge::Merge;
use crate::replay::outcome::Verdict;
use crate::replay::policies::{PolicySet, hash_of};
use crate::replay::problems::Problems;
use crate::replay::report::{Changes, ClockReport, ReplayReport};
use crate::replay::source::{Call, CallFields, LogSource};
use crate::replay::suggest::EventStreams;
use crate::replay::time::TimeParser;
use crate::replay::{PolicyChoice, ReplayOptions};

/// The number of calls between two reports of the progress.
const PROGRESS_EVERY: u64 = 1 << 14;

/// The progress of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The number of bytes read from the files.
    pub bytes: u64,
    /// The size of all files; `None` if one has no size.
    pub of_bytes: Option<u64>,
    /// The number of calls.
    pub calls: u64,
}

/// Replays the logs.
///
/// # Errors
///
/// A message if a file cannot be read, an option does not fit the files, or no line is a call.
pub fn replay(options: &ReplayOptions, mut progress: impl FnMut(Progress)) -> Result<ReplayReport, String> {
    let open = |path: &Path| {
        let (choice, app) = (&options.choice, options.app.as_deref());
        PolicySet::open(path, choice, &options.key, app, options.max_keys)
    };
    let mut first = options.policies.as_deref().map(open).transpose()?;
    let mut second = options.compare.as_deref().map(open).transpose()?;
    let mut streams = options.suggest.map(EventStreams::new);
    let bytes = ByteCount::default();
    let mut problems = Problems::default();
    let mut calls = merged(options, &bytes, &mut problems)?;
    let of_bytes = size(options);

    let (mut count, mut first_at, mut last_at) = (0, 0, 0);
    let mut changes = Changes::default();
    let mut whole_seconds = true;
    while let Some(call) = calls.next(&mut problems)? {
        if count == 0 {
            first_at = call.at;
        }
        last_at = call.at;
        whole_seconds &= call.at.is_multiple_of(1_000_000);
        count += 1;
        let before = first.as_mut().map(|first| first.decide(call));
        if let Some(streams) = &mut streams {
            record(streams, first.as_ref(), &options.choice, call);
        }
        if let Some(second) = &mut second {
            let (before, after) = (before.unwrap_or(Verdict::Undecided), second.decide(call));
            changes.newly_denied += u64::from(before == Verdict::Admitted && after == Verdict::Denied);
            changes.newly_admitted += u64::from(before == Verdict::Denied && after == Verdict::Admitted);
        }
        if count % PROGRESS_EVERY == 0 {
            progress(Progress {
                bytes: bytes.get(),
                of_bytes,
                calls: count,
            });
        }
    }
    if count == 0 {
        return Err(no_calls(options, &problems));
    }
    let (mut clock, mut times) = (ClockReport::default(), TimeParser::default());
    for source in calls.sources() {
        clock.add(source.timeline.report());
        times.add_counts(&source.times);
    }
    let result = |set: &Option<PolicySet>, other: &Option<PolicySet>| {
        set.as_ref().map(|set| set.report(other.as_ref()))
    };
    let results = [result(&first, &second), result(&second, &first)];
    Ok(ReplayReport {
        logs: options.logs.iter().map(|log| log.display().to_string()).collect(),
        lines: calls.lines(),
        calls: count,
        first_at,
        last_at,
        whole_seconds,
        broken: problems.into_report(),
        clock,
        zones: times.report(),
        results: results.into_iter().flatten().collect(),
        changes: second.is_some().then_some(changes),
        suggestions: streams.map(EventStreams::suggestions).unwrap_or_default(),
    })
}

/// Records a call for the suggestion.
fn record(streams: &mut EventStreams, policies: Option<&PolicySet>, choice: &PolicyChoice, call: &Call) {
    match (choice, policies) {
        (PolicyChoice::Rules { .. }, Some(policies)) => {
            if let Some((policy, hash)) = policies.last_match() {
                streams.record(Some(policy), hash, call);
            }
        }
        _ => streams.record(None, hash_of(&key_of(call.key())), call),
    }
}

fn merged(options: &ReplayOptions, bytes: &ByteCount, problems: &mut Problems) -> Result<Merge, String> {
    let fields = options.key.iter().map(|key| key.field.clone());
    let fields = CallFields {
        names: FieldNames {
            time: options.time.clone(),
            fields: fields.chain(options.cost.clone()).collect(),
        },
        has_cost: options.cost.is_some(),
    };
    let sources = options
        .logs
        .iter()
        .map(|log| LogSource::open(log, options.format, &fields, &Rc::clone(bytes)));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    Merge::new(sources, problems)
}

fn size(options: &ReplayOptions) -> Option<u64> {
    let sizes = options.logs.iter().map(|log| {
        let metadata = std::fs::metadata(log).ok()?;
        metadata.is_file().then_some(metadata.len())
    });
    sizes.sum()
}

fn no_calls(options: &ReplayOptions, problems: &Problems) -> String {
    let logs: Vec<String> = options.logs.iter().map(|log| log.display().to_string()).collect();
    let logs = logs.join(", ");
    match problems.first() {
        Some(first) => format!(
            "no line of {logs} is a call; {} lines are not readable: {first}",
            problems.lines()
        ),
        None => format!("{logs}: no lines, expected an access log"),
    }
}
