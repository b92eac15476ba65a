//! The report as one HTML file without scripts and without external resources.
//!
//! The page is written as text in one pass: the result in one sentence, the comparison,
//! suggestions, policies with charts and keys, and notes on the accuracy. The styles are included
//! in the page.
//!
//! Invariant: each text from a log or a policy file is escaped. Tests: `tests/replay/page.rs`,
//! `tests/replay/guide.rs`.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::replay::report::chart::{Chart, escaped};
use crate::replay::report::palette::palette;
use crate::replay::report::{PolicyReport, PolicySetReport, ReplayReport, Waits};
use crate::replay::suggest::Suggestion;
use crate::replay::text::{grouped, percent, span, time};

const STYLE: &str = include_str!("style.css");

pub(super) fn write(report: &ReplayReport) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(report, &mut page);
    page
}

fn write_page(report: &ReplayReport, to: &mut String) -> fmt::Result {
    writeln!(
        to,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Policy replay</title><style>{}{STYLE}</style></head><body><main>",
        palette()
    )?;
    writeln!(to, "<h1>{}</h1>", escaped(&headline(report)))?;
    let covered = span(Duration::from_micros(
        report.last_at.saturating_sub(report.first_at),
    ));
    writeln!(
        to,
        "<p class=\"muted\">{} calls in {covered}, {} to {} UTC, from {}</p>",
        grouped(report.calls),
        time(report.first_at),
        time(report.last_at),
        escaped(&report.logs.join(", "))
    )?;
    write_comparison(report, to)?;
    for suggestion in &report.suggestions {
        write_suggestion(suggestion, to)?;
    }
    for result in &report.results {
        for policy in &result.policies {
            write_policy(policy, result, report, to)?;
        }
    }
    let notes = report.notes();
    if !notes.is_empty() {
        to.push_str("<section><h2>Accuracy</h2><ul class=\"small\">\n");
        for note in notes {
            writeln!(to, "<li>{}</li>", escaped(&note))?;
        }
        to.push_str("</ul></section>\n");
    }
    to.push_str("</main></body></html>\n");
    Ok(())
}

/// Returns the result in one sentence.
fn headline(report: &ReplayReport) -> String {
    let share = |result: &PolicySetReport| percent(result.denied, report.calls);
    match report.results.as_slice() {
        [only] => format!("{} of calls are above a limit", share(only)),
        [first, second, ..] => format!(
            "{} of calls are above a limit, and {} with {}",
            share(first),
            share(second),
            second.file
        ),
        [] => "Suggested limits".to_owned(),
    }
}

fn write_comparison(report: &ReplayReport, to: &mut String) -> fmt::Result {
    let ([first, second], Some(changes)) = (report.results.as_slice(), &report.changes) else {
        return Ok(());
    };
    writeln!(
        to,
        "<section><h2>Comparison</h2><p>{} calls are denied only by {}, and {} only by {}.</p>\
         <table><thead><tr><th>Policy</th><th class=\"number\">{}</th><th class=\"number\">{}</th></tr></thead><tbody>",
        grouped(changes.newly_denied),
        escaped(&second.file),
        grouped(changes.newly_admitted),
        escaped(&first.file),
        escaped(&first.file),
        escaped(&second.file)
    )?;
    let denied = |policy: Option<&PolicyReport>| match policy {
        Some(policy) => format!(
            "{} denied",
            percent(policy.denied, policy.admitted + policy.denied)
        ),
        None => "absent".to_owned(),
    };
    let of = |result: &PolicySetReport, name: &str| {
        denied(result.policies.iter().find(|policy| policy.name == name))
    };
    let only_second = second.policies.iter().map(|policy| &policy.name);
    let only_second = only_second.filter(|name| first.policies.iter().all(|policy| policy.name != **name));
    for name in first
        .policies
        .iter()
        .map(|policy| &policy.name)
        .chain(only_second)
    {
        writeln!(
            to,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escaped(name),
            of(first, name),
            of(second, name)
        )?;
    }
    to.push_str("</tbody></table></section>\n");
    Ok(())
}

fn write_policy(
    policy: &PolicyReport,
    result: &PolicySetReport,
    report: &ReplayReport,
    to: &mut String,
) -> fmt::Result {
    let state = match policy.enforcement.as_str() {
        "shadow" => "shadow: would deny",
        "off" => "off: admits all calls",
        _ => "enforced",
    };
    write!(
        to,
        "<section><h2>{}</h2><p><span class=\"state {}\">{state}</span> · {}",
        escaped(&policy.name),
        escaped(&policy.enforcement),
        escaped(&policy.policy)
    )?;
    if report.results.len() > 1 {
        write!(to, " · <span class=\"muted\">{}</span>", escaped(&result.file))?;
    }
    let calls = policy.admitted + policy.denied;
    write!(to, "</p>\n<dl class=\"figures\">")?;
    for (name, value) in [
        ("Admitted", grouped(policy.admitted)),
        (
            "Denied",
            format!("{} ({})", grouped(policy.denied), percent(policy.denied, calls)),
        ),
        (
            "Keys denied",
            format!("{} of {}", grouped(policy.denied_keys), grouped(policy.keys)),
        ),
        ("Longest wait", span(policy.waits.longest)),
    ] {
        write!(to, "<div><dt>{name}</dt><dd>{value}</dd></div>")?;
    }
    to.push_str("</dl>\n");
    write_chart(&Chart::over_time(policy), true, to)?;
    to.push_str(
        "<p class=\"legend small muted\"><span><i></i>calls</span><span><i class=\"red\"></i>denied</span></p>\n",
    );
    write_waits(&policy.waits, to)?;
    write_keys(policy, report.results.len() > 1, to)?;
    to.push_str("</section>\n");
    Ok(())
}

fn write_chart(chart: &Chart, stretch: bool, to: &mut String) -> fmt::Result {
    let [top, bottom] = chart.vertical.each_ref().map(|label| escaped(label));
    let [start, end] = chart.horizontal.each_ref().map(|label| escaped(label));
    let image = match stretch {
        true => chart.inline(true).replacen("<svg ", "<svg class=\"time\" ", 1),
        false => chart.inline(false),
    };
    writeln!(
        to,
        "<div class=\"chart\"><span class=\"top\">{top}</span>{image}<span class=\"bottom\">{bottom}</span>\
         <div class=\"across\"><span>{start}</span><span>{end}</span></div></div>"
    )
}

fn write_waits(waits: &Waits, to: &mut String) -> fmt::Result {
    let all: u64 = waits.ranges.iter().sum::<u64>() + waits.never;
    if all == 0 {
        return Ok(());
    }
    to.push_str(
        "<h3>Time until a denied call would be admitted</h3><table><thead><tr><th>Wait</th>\
         <th class=\"number\">Calls</th><th class=\"number\">Share</th></tr></thead><tbody>\n",
    );
    let never = std::iter::once((&"never", waits.never));
    for (range, count) in Waits::RANGES
        .iter()
        .zip(waits.ranges)
        .chain(never)
        .filter(|(_, count)| *count > 0)
    {
        writeln!(
            to,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escaped(range),
            grouped(count),
            percent(count, all)
        )?;
    }
    to.push_str("</tbody></table>\n");
    Ok(())
}

fn write_keys(policy: &PolicyReport, compared: bool, to: &mut String) -> fmt::Result {
    for (title, keys) in [
        ("Keys with the most denied calls", &policy.most_denied),
        ("Keys with the longest waits", &policy.longest_waits),
    ] {
        if keys.is_empty() {
            continue;
        }
        let other = if compared {
            "<th class=\"number\">Other file</th>"
        } else {
            ""
        };
        writeln!(
            to,
            "<h3>{title}</h3><table><thead><tr><th>Key</th><th class=\"number\">Denied</th>{other}\
             <th class=\"number\">Calls</th><th class=\"number\">Longest wait</th></tr></thead><tbody>"
        )?;
        for key in keys.iter().take(10) {
            let denied = grouped(key.denied);
            write!(
                to,
                "<tr><td>{}</td><td class=\"number\">{denied}</td>",
                escaped(&key.key)
            )?;
            if compared {
                let other = key.denied_by_other.map_or_else(|| "absent".to_owned(), grouped);
                write!(to, "<td class=\"number\">{other}</td>")?;
            }
            let (calls, wait) = (grouped(key.calls), span(key.longest_wait));
            writeln!(
                to,
                "<td class=\"number\">{calls}</td><td class=\"number\">{wait}</td></tr>"
            )?;
        }
        to.push_str("</tbody></table>\n");
    }
    Ok(())
}

fn write_suggestion(suggestion: &Suggestion, to: &mut String) -> fmt::Result {
    let of = suggestion
        .policy
        .as_deref()
        .map_or_else(String::new, |policy| format!(" for {policy}"));
    writeln!(to, "<section><h2>Suggested token bucket{}</h2>", escaped(&of))?;
    match suggestion.recommendation() {
        Some(bucket) => writeln!(
            to,
            "<p><span class=\"state recommended\">recommended</span> · capacity {}, rate {}: {} of calls denied, for {} of {} \
             keys. It is the lowest of these rates that refills its capacity within a minute.</p>",
            grouped(bucket.capacity),
            bucket.rate,
            percent(bucket.denied_calls, suggestion.calls),
            grouped(bucket.denied_keys),
            grouped(suggestion.keys)
        )?,
        None => to.push_str("<p>None of these rates refills its capacity within a minute.</p>\n"),
    }
    writeln!(
        to,
        "<h3>Smallest capacity of each rate with {}</h3>",
        escaped(&suggestion.target)
    )?;
    if let Some(chart) = Chart::capacities(suggestion) {
        write_chart(&chart, false, to)?;
        to.push_str("<p class=\"small muted\">Capacity over rate, both on a logarithmic scale</p>\n");
    }
    to.push_str(
        "<table><thead><tr><th>Rate</th><th class=\"number\">Capacity</th><th class=\"number\">Denied calls</th>\
         <th class=\"number\">Denied keys</th></tr></thead><tbody>\n",
    );
    for (number, bucket) in suggestion.buckets.iter().enumerate() {
        let mark = match suggestion.recommended == Some(number) {
            true => " <span class=\"recommended small\">recommended</span>",
            false => "",
        };
        writeln!(
            to,
            "<tr><td>{}{mark}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td></tr>",
            bucket.rate,
            grouped(bucket.capacity),
            grouped(bucket.denied_calls),
            grouped(bucket.denied_keys)
        )?;
    }
    to.push_str("</tbody></table></section>\n");
    Ok(())
}
