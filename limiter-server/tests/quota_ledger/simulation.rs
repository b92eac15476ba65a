//! Envoys whose demand changes share a budget of 1,000 per second, under a clock of the test.

use std::fmt::Write as _;
use std::path::Path;

use super::support::quota_bucket::EnvoyBucket;
use super::{SECOND, Subject};

/// The admitted calls of Envoys with these demands in each second of a time.
fn admitted(subject: &Subject, envoys: &mut [EnvoyBucket], demands: &[u64], seconds: u64) -> Vec<Vec<u64>> {
    let mut admitted = Vec::new();
    let mut reported = vec![None; envoys.len()];
    for tick in 0..seconds * 100 {
        let now = subject.now();
        if tick.is_multiple_of(100) {
            admitted.push(vec![0; envoys.len()]);
        }
        for (number, (envoy, demand)) in envoys.iter_mut().zip(demands).enumerate() {
            envoy.advance(now);
            admitted.last_mut().unwrap()[number] += envoy.request(demand / 100);
            if (tick + number as u64 * 37).is_multiple_of(500) {
                reported[number] = Some((envoy.allowed + envoy.denied) * 200_000);
                (envoy.allowed, envoy.denied) = (0, 0);
            }
        }
        if tick.is_multiple_of(100) {
            let (assignments, _) = subject.assign(
                |_| true,
                |ledger| {
                    for (holder, demand) in (0..).zip(&reported) {
                        if let Some(demand) = demand {
                            ledger.report(holder, *demand);
                        }
                    }
                },
            );
            for assignment in assignments {
                let envoy = &mut envoys[usize::try_from(assignment.holder).unwrap()];
                envoy.arriving.push((now + SECOND / 10, assignment.bucket));
            }
        }
        subject.advance(SECOND / 100);
    }
    admitted
}

/// The used part of the budget.
fn used(admitted: &[Vec<u64>]) -> f64 {
    let all: u64 = admitted.iter().flatten().sum();
    all as f64 / (admitted.len() as f64 * 1_000.0)
}

#[test]
fn budget_follows_changing_demand() {
    let subject = Subject::new(1_000, 1_000);
    let mut envoys = vec![EnvoyBucket::default(); 3];
    let mut all = 0.0;
    for demands in [
        [900, 900, 900],
        [2_000, 100, 0],
        [0, 100, 2_000],
        [400, 2_000, 400],
    ] {
        let across = used(&admitted(&subject, &mut envoys, &demands, 15));
        let steady = used(&admitted(&subject, &mut envoys, &demands, 45));
        assert!(steady >= 0.9, "{steady} with {demands:?}");
        all += (across * 15.0 + steady * 45.0) / 240.0;
    }
    assert!(all >= 0.7, "{all}");
}

/// The style sheet of the admin UI, which begins with the colours of both themes.
const ADMIN_STYLE: &str = include_str!("../../src/admin/pages/assets/style.css");
/// The colours of the lines.
const COLOURS: [&str; 3] = ["accent", "waiting", "ok"];

/// The admitted calls of three Envoys over time as SVG.
fn image(admitted: &[Vec<u64>], changes: &[(usize, String)]) -> String {
    const HEIGHT: u64 = 200;
    let (x, y) = (
        |second: usize| 40 + second * 5,
        |calls: u64| 20 + HEIGHT - calls * HEIGHT / 1_250,
    );
    let right = x(admitted.len());
    let (_, colours) = ADMIN_STYLE.split_once(":root").unwrap();
    let (colours, _) = colours.split_once("* { box-sizing").unwrap();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} 260\" role=\"img\" \
         aria-label=\"Admitted calls per second of three Envoys that share a budget of 1,000 per second\">\
         <style>:root{colours}svg{{background:var(--bg)}}\
         text{{font-family:system-ui,sans-serif;font-size:var(--size-small);fill:var(--muted)}}\
         path{{fill:none}}</style>",
        right + 10
    );
    for calls in [0, 500, 1_000] {
        let level = y(calls);
        write!(svg, "<path stroke=\"var(--line)\" d=\"M40 {level}H{right}\"/>").unwrap();
        write!(
            svg,
            "<text x=\"34\" y=\"{}\" text-anchor=\"end\">{calls}</text>",
            level + 4
        )
        .unwrap();
    }
    for (second, demands) in changes {
        let left = x(*second);
        write!(
            svg,
            "<path stroke=\"var(--muted)\" stroke-dasharray=\"3 3\" d=\"M{left} 14V{}\"/>",
            y(0)
        )
        .unwrap();
        write!(svg, "<text x=\"{}\" y=\"12\">{demands}</text>", left + 3).unwrap();
        write!(svg, "<text x=\"{left}\" y=\"238\">{second} s</text>").unwrap();
    }
    for (number, colour) in COLOURS.iter().enumerate() {
        let points = admitted.iter().enumerate();
        let points = points.map(|(second, calls)| format!("{} {}", x(second), y(calls[number])));
        let points: Vec<String> = points.collect();
        write!(
            svg,
            "<path stroke=\"var(--{colour})\" stroke-width=\"1.5\" d=\"M{}\"/>",
            points.join("L")
        )
        .unwrap();
        let left = 40 + number * 80;
        write!(
            svg,
            "<text x=\"{left}\" y=\"255\" style=\"fill:var(--{colour})\">Envoy {}</text>",
            number + 1
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

#[test]
fn image_of_guide_is_that_of_simulation() {
    let subject = Subject::new(1_000, 1_000);
    let mut envoys = vec![EnvoyBucket::default(); 3];
    let (mut calls, mut changes) = (Vec::new(), Vec::new());
    for demands in [[800, 800, 0], [1_200, 100, 0], [100, 1_200, 400]] {
        changes.push((calls.len(), demands.map(|of| of.to_string()).join(", ") + " /s"));
        calls.extend(admitted(&subject, &mut envoys, &demands, 35));
    }
    let image = image(&calls, &changes);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/images/rlqs-shares.svg");
    if std::env::var_os("UPDATE_IMAGES").is_some() {
        std::fs::write(&path, &image).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == image,
        "rlqs-shares.svg is out of date: run this test with UPDATE_IMAGES=1"
    );
}
