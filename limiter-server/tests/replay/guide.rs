//! The images of the guide are those of the report. `UPDATE_IMAGES=1` writes them.

use std::path::Path;

use limiter_server::replay::report::ReplayReport;
use limiter_server::replay::suggest::DenialTarget;
use limiter_server::replay::{KeyField, PolicyChoice, ReplayOptions, replay};

use crate::guide_log::{POLICIES, log};
use crate::support::server::Directory;

fn report() -> ReplayReport {
    let directory = Directory::new();
    let options = ReplayOptions {
        policies: Some(directory.write("limits.toml", POLICIES)),
        compare: None,
        logs: vec![directory.write("access.log", &log())],
        format: None,
        key: vec!["user".parse::<KeyField>().unwrap()],
        cost: None,
        time: None,
        choice: PolicyChoice::Each,
        app: None,
        max_keys: 1_000,
        suggest: Some(DenialTarget::default()),
    };
    replay(&options, |_| {}).unwrap()
}

#[test]
fn images_of_guide_are_those_of_report() {
    let report = report();
    let images = [
        ("replay-over-time.svg", report.results[0].policies[0].chart()),
        ("replay-suggestion.svg", report.suggestions[0].chart().unwrap()),
    ];
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/images");
    for (name, image) in images {
        let path = directory.join(name);
        if std::env::var_os("UPDATE_IMAGES").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &image).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == image,
            "{name} is out of date: run this test with UPDATE_IMAGES=1"
        );
        assert!(image.len() < 20_000, "{name}: {} bytes", image.len());
    }
}
