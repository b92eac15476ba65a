//! The reason for the denial of a key at a time: the revision in force, its values, the rules, the
//! last author.
//!
//! The page states facts that are recorded, and "not recorded" for all others. Tests: below.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use limiter_core::Enforcement;
use limiter_core::registry::{KeyOverride, Rule};
use serde::Deserialize;

use crate::admin::api::keys::keys_under;
use crate::admin::numbers::grouped;
use crate::admin::pages::activity::{self, KeyActivityRow};
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::causes::{StoreFact, invalid_text};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::key_fields::{KeyFields, KeyInput, fields_of};
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::overlays::{
    BlockView, OverlayReach, SuspensionView, blocks, blocks_of_key, suspensions,
};
use crate::admin::pages::plot::{HOURS, PlotRange, PlotView};
use crate::admin::pages::revisions::DocumentRevisions;
use crate::admin::pages::rules_history::rules_at;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::usage::{CountsView, PointListView};
use crate::admin::pages::views::RevisionView;
use crate::admin::pages::{links, render};
use crate::admin::sentence::sentence;
use crate::key_text::{CUT_KEY, is_cut, parts_of, recorded};
use crate::policy_text::PolicyText;
use crate::publish::timestamp;
use crate::secret::fingerprint::is_fingerprint;
use crate::store::now_micros;

const MINUTE: i64 = 60_000_000;
/// The time after which calls of the gateways are in the counts of the policy.
const FOLDED_AFTER: i64 = 1_000_000;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ExplainQuery {
    policy: String,
    key: String,
    /// Microseconds since the Unix epoch.
    at: Option<i64>,
    /// A time in UTC such as `2026-11-23T14:03`, from the form; `None` in a link.
    time: Option<String>,
    /// The fields of the parts of the key, if the policy declares them.
    #[serde(flatten)]
    parts: KeyFields,
}

/// The facts about a minute.
#[derive(Debug)]
struct Explanation {
    minute: PageTime,
    /// The page of this minute, also if the query has no time.
    here: String,
    /// The page of the policy.
    href: String,
    /// The revision that was saved last; `None` before the first one.
    revision: Option<RevisionView>,
    sentence: Option<String>,
    /// The declared names of the parts of keys.
    declared: Vec<String>,
    /// The quota of the key in that revision.
    quota: Option<String>,
    counts: CountsView,
    /// The part of the failed calls that was invalid, in words.
    invalid: String,
    /// True if counts of that minute are kept.
    is_counted: bool,
    /// The time of the counts while later ones of that minute can follow.
    counted_at: Option<PageTime>,
    /// The statements about the store.
    store: Vec<StoreFact>,
    /// The suspensions and blocks that were active.
    overlays: Vec<String>,
    denials: MinuteDenials,
    /// The fingerprint of the key, which records and metadata contain.
    fingerprint: Option<String>,
    /// The recorded samples of the hour, of all nodes and library processes.
    samples: Vec<KeyActivityRow>,
    /// The numbers of the rules that led to the policy, as saved then.
    rules: Vec<(usize, String)>,
    next_edit: Option<RevisionView>,
    plot: PlotView,
}

/// The recorded denials of the minute at this node.
#[derive(Debug)]
enum MinuteDenials {
    /// This node does not see calls, or did not run then.
    NotRecorded,
    /// The most denied keys of the minute; the wanted key alone if there is one.
    Recorded { node: String, keys: Vec<KeyActivityRow> },
}

#[derive(Template)]
#[template(path = "explain.html")]
struct ExplainTemplate {
    layout: Layout,
    href: String,
    query: ExplainQuery,
    time: String,
    /// The fields of the declared parts of the key; empty for one field.
    key_fields: Vec<KeyInput>,
    explanation: Option<Explanation>,
    customers: String,
    failure: Option<String>,
}

impl ExplainQuery {
    /// Returns the time of the query; `None` for a text that is no time, and outside of the
    /// calendar.
    fn at(&self, now: i64) -> Option<i64> {
        if let Some(at) = self.at {
            return Some(at).filter(|at| PageTime(*at).is_in_calendar());
        }
        match self.time.as_deref().unwrap_or_default().trim() {
            "" => Some(now),
            text => PageTime::of_field(text).ok().map(|time| time.0),
        }
    }
}

/// Returns the quota that a key had in a text at a time, in words. `rules` are those of the time.
fn quota_of(text: &PolicyText, key: &str, (rules, at): (&[Rule], i64)) -> Option<String> {
    let keys = keys_under(text.name(), &parts_of(key), rules);
    let applies = |of: &KeyOverride| {
        let has_ended = of.end().is_some_and(|end| end <= timestamp(at));
        keys.contains(of.key()) && !has_ended
    };
    let quota = text.overrides().iter().find(|of| applies(of))?;
    Some(format!(
        "a quota of {} for this key",
        grouped(quota.policy().quota().whole())
    ))
}

async fn explain(
    caller: &PageCaller,
    environment: &str,
    query: &ExplainQuery,
    at: i64,
) -> Result<Explanation, PageFailure> {
    let revisions = DocumentRevisions::of_policy(caller, environment, &query.policy);
    let revision = revisions.at(at).await?;
    let next_edit = revisions.after(revision.as_ref(), at).await?;
    let text = revision
        .as_ref()
        .filter(|of| !of.is_deletion)
        .and_then(|of| PolicyText::parse(&query.policy, &of.toml).ok());
    let minute = at - at.rem_euclid(MINUTE);
    let path = links::api(environment, &["policies", &query.policy, "usage"]);
    let range = format!("{path}?from={minute}&to={}", minute + MINUTE);
    let usage: PointListView = caller.api.get(&range).await?;
    let counts = usage.points.first().map(|point| point.counts);
    let denials = denials(caller, environment, query, minute).await?;
    let of_key = (query.policy.as_str(), query.key.as_str());
    let samples = activity::samples(caller, environment, of_key, at).await?;
    let fingerprint = samples.fingerprint;
    let samples = samples.denials.into_iter();
    let samples = samples.map(|of| KeyActivityRow::new(environment, of)).collect();
    let overlays = overlays(caller, environment, query, (at, text.as_ref())).await?;
    let saved_rules = rules_at(caller, environment, at).await?;
    let rules = saved_rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.policy() == query.policy);
    let rules = rules.map(|(number, rule)| {
        let patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
        (number + 1, patterns.join(", "))
    });
    let marks = revisions.marks(&revisions.page(None).await?.revisions);
    Ok(Explanation {
        plot: {
            let range = PlotRange::around(at, HOURS, usage.now);
            PlotView::read(caller, environment, &query.policy, &marks, range).await?
        },
        minute: PageTime(minute),
        here: format!(
            "{}?policy={}&key={}&at={at}",
            links::page(environment, &["explain"]),
            links::encode(&query.policy),
            links::encode(&query.key)
        ),
        href: links::page(environment, &["policies", &query.policy]),
        sentence: text.as_ref().map(sentence),
        declared: text
            .iter()
            .flat_map(|text| text.entry().key_parts().map(str::to_owned))
            .collect(),
        quota: text
            .as_ref()
            .and_then(|text| quota_of(text, &query.key, (&saved_rules, at))),
        revision,
        invalid: invalid_text(usage.invalid),
        store: StoreFact::of(&usage, counts.unwrap_or_default()),
        counts: counts.unwrap_or_default(),
        is_counted: counts.is_some(),
        counted_at: (usage.now < minute + MINUTE + FOLDED_AFTER).then_some(PageTime(usage.now)),
        overlays,
        denials,
        fingerprint,
        samples,
        rules: rules.collect(),
        next_edit,
    })
}

/// Returns the recorded denials of a minute.
async fn denials(
    caller: &PageCaller,
    environment: &str,
    query: &ExplainQuery,
    minute: i64,
) -> Result<MinuteDenials, PageFailure> {
    let range = (minute, minute + MINUTE - 1);
    let list = activity::read(caller, environment, Some(&query.policy), Some(range)).await?;
    let wanted = recorded(&query.key);
    Ok(match list.keys {
        None => MinuteDenials::NotRecorded,
        // The record of a node starts with its process, so an empty one states nothing.
        Some(keys) if keys.is_empty() => MinuteDenials::NotRecorded,
        Some(mut keys) => {
            keys.retain(|of| of.is_denied() && (wanted.is_empty() || of.key == wanted));
            let keys = keys.into_iter().map(|of| KeyActivityRow::new(environment, of));
            MinuteDenials::Recorded {
                node: list.node,
                keys: keys.collect(),
            }
        }
    })
}

/// Returns the author and the reason of an overlay.
fn stated(by: Option<&str>, reason: Option<&str>) -> String {
    let by = by.unwrap_or("not known");
    match reason {
        Some(reason) => format!("by {by}: {reason}"),
        None => format!("by {by}"),
    }
}

/// Returns the programs in which an overlay applied, unless these are all.
fn place(reach: OverlayReach) -> String {
    match reach {
        OverlayReach::Everywhere => String::new(),
        OverlayReach::ProgramsOf(app) => format!(" in programs of app {app}"),
    }
}

/// Returns the suspensions and blocks that were active at a time and concern the policy and the
/// key.
async fn overlays(
    caller: &PageCaller,
    environment: &str,
    query: &ExplainQuery,
    (at, text): (i64, Option<&PolicyText>),
) -> Result<Vec<String>, PageFailure> {
    let apps = text.and_then(PolicyText::apps);
    let apps = apps.as_deref();
    let suspensions = suspensions(caller, environment, Some(at)).await?;
    let suspensions = suspensions.iter().filter(|of| of.active);
    let suspended: Vec<(&SuspensionView, OverlayReach)> = suspensions
        .filter_map(|of| Some((of, of.reach(&query.policy, apps)?)))
        .collect();
    let is_suspended = suspended
        .iter()
        .any(|(_, reach)| *reach == OverlayReach::Everywhere);
    let texts = suspended.into_iter().map(|(of, reach)| {
        let stated = stated(of.by.as_deref(), of.reason.as_deref());
        let (scope, place) = (of.scope_text(), place(reach));
        format!("Suspended{place}: {scope}, {stated}. {}", of.consequence())
    });
    let mut texts: Vec<String> = texts.collect();
    let is_off = text.is_some_and(|text| text.entry().policy().enforcement() == Enforcement::Off);
    let ignored = match (is_suspended, is_off) {
        (true, _) => " It had no effect: the suspension took precedence.",
        (false, true) => " It had no effect: the policy was off.",
        (false, false) => "",
    };
    let key = query.key.as_str();
    if key.is_empty() {
        let blocks = blocks(caller, environment, Some(at)).await?;
        let count = blocks.iter().filter(|of| of.reach(apps).is_some()).count();
        texts.extend((count > 0).then(|| active_blocks(count)));
        return Ok(texts);
    }
    let blocks = blocks_of_key(caller, environment, (&query.policy, key), at).await?;
    let matching = blocks.iter().filter(|of| of.matches == Some(true));
    texts.extend(matching.filter_map(|of: &BlockView| {
        let place = place(of.reach(apps)?);
        let stated = stated(of.by.as_deref(), of.reason.as_deref());
        Some(format!("Blocked{place}: {}, {stated}.{ignored}", of.target()))
    }));
    Ok(texts)
}

/// Returns the number of blocks, of which those of an entered key are shown.
fn active_blocks(count: usize) -> String {
    match count {
        1 => "1 block was active: enter a key to see whether it applied".to_owned(),
        count => format!(
            "{} blocks were active: enter a key to see those that applied",
            grouped(count)
        ),
    }
}

/// Replaces a fingerprint of the query, for example that of a link, by its key if a denial of the
/// key is recorded.
async fn resolve_fingerprint(
    caller: &PageCaller,
    environment: &str,
    query: &mut ExplainQuery,
    now: i64,
) -> Result<(), PageFailure> {
    let at = query
        .at(now)
        .filter(|_| !query.policy.is_empty() && is_fingerprint(&query.key));
    let Some(at) = at else { return Ok(()) };
    let wanted = (query.policy.as_str(), query.key.as_str());
    match activity::key_of_fingerprint(caller, environment, wanted, at).await {
        Ok(Some(key)) => query.key = key,
        Ok(None) => {}
        // The page reports policies that the user may not read.
        Err(failure) if failure.status == axum::http::StatusCode::NOT_FOUND => {}
        Err(failure) => return Err(failure),
    }
    Ok(())
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(mut query): Query<ExplainQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Explain, "Explain").await?;
    query.policy = query.policy.trim().to_owned();
    // A link names the exact key, which can start or end with a space.
    if query.time.is_some() {
        query.key = query.key.trim().to_owned();
    }
    let now = now_micros();
    if let Some(key) = query.parts.text() {
        query.key = key;
    }
    resolve_fingerprint(&caller, &environment, &mut query, now).await?;
    let (explanation, failure) = match (query.policy.is_empty(), query.at(now)) {
        (true, _) => (None, None),
        (false, None) => (None, Some("The time is not like 2026-11-23T14:03.".to_owned())),
        (false, _) if is_cut(&query.key) => (None, Some(CUT_KEY.to_owned())),
        (false, Some(at)) => match explain(&caller, &environment, &query, at).await {
            Ok(explanation) => (Some(explanation), None),
            Err(failure) if failure.status == axum::http::StatusCode::NOT_FOUND => (
                None,
                Some("There is no such policy, or you may not read it.".to_owned()),
            ),
            Err(failure) => return Err(failure),
        },
    };
    Ok(render(&ExplainTemplate {
        href: links::page(&environment, &["explain"]),
        time: PageTime(query.at(now).unwrap_or(now)).field_text(),
        customers: links::customer(&environment, &query.key),
        key_fields: explanation
            .as_ref()
            .map(|of| fields_of(&of.declared, &query.key))
            .unwrap_or_default(),
        query,
        explanation,
        failure,
        layout,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_the_form_is_utc() {
        let query = |time: &str| ExplainQuery {
            time: Some(time.to_owned()),
            ..ExplainQuery::default()
        };
        assert_eq!(query("2026-11-23T14:03").at(5), Some(1_795_442_580_000_000));
        assert_eq!(query("").at(5), Some(5));
        assert_eq!(query("14:03").at(5), None);
    }

    #[test]
    fn quota_of_the_key_is_found() {
        let text = "[policy.p]\nalgorithm = 'token_bucket'\ncapacity = 5\nrate = '1/s'\n\
                    [[override]]\npolicy = 'p'\nkey = 'acme'\ncapacity = 5000\nrate = '1/s'\n";
        let text = PolicyText::parse("p", text).unwrap();
        let quota = |key| quota_of(&text, key, (&[], 0));
        assert_eq!(quota("acme").as_deref(), Some("a quota of 5,000 for this key"));
        assert_eq!(quota("globex"), None);
    }
}
