//! Broken lines, clocks, time zones, compression and several files.

use std::io::Write;

use serde_json::json;

use crate::command::Files;

#[test]
fn broken_lines_are_counted_and_described() {
    let files = Files::new();
    let mut log = std::fs::read_to_string(files.path("access.log")).unwrap();
    log.push_str("not a line\n");
    log.push_str("10.0.0.1 - - [99/Jan/2026:12:00:00 +0000] \"GET / HTTP/1.1\" 200 100 \"-\" \"-\"\n");
    log.push_str("10.0.0.1 - - [01/Jan/2026:12:00:06 +0000] \"-\" 400 0 \"-\" \"-\"\n");
    log.push_str("10.0.0.1 - - [01/Jan/2026:12:00:06 +0000] \"GET / HTTP/1.1\" 200 many \"-\" \"-\"\n");
    let mut bytes = log.into_bytes();
    bytes.extend(b"\xff\xfe\n");
    std::fs::write(files.path("access.log"), bytes).unwrap();
    let report = files.json(&["--key", "remote_addr,path", "--cost", "bytes"]);
    assert_eq!((&report["lines"], &report["calls"]), (&12.into(), &7.into()));
    let broken = report["broken"].as_array().unwrap();
    let kinds: Vec<(&str, u64)> = broken
        .iter()
        .map(|of| (of["kind"].as_str().unwrap(), of["lines"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        kinds,
        [("format", 1), ("time", 1), ("key", 1), ("cost", 1), ("text", 1)]
    );
    let path = files.path("access.log");
    let example = |number: usize| broken[number]["examples"][0].as_str().unwrap();
    assert!(example(0).starts_with(&format!("{path}:8: `not a line`, expected address identity user")));
    assert!(
        example(1).contains(":9: `99/Jan/2026:12:00:00 +0000`, expected 10/Oct/2000"),
        "{}",
        example(1)
    );
    assert!(
        example(2).contains("expected a value of `path` for the key"),
        "{}",
        example(2)
    );
    assert!(example(3).contains("`many`, expected a number"), "{}", example(3));
    assert!(example(4).contains("expected UTF-8"), "{}", example(4));
    let (_, output, _) = files.replay(&["--key", "remote_addr,path", "--cost", "bytes"]);
    assert!(
        output.contains("note: 1 lines (8.33 %) skipped, such as"),
        "{output}"
    );
}

#[test]
fn first_broken_line_does_not_select_format() {
    let files = Files::new();
    let log = std::fs::read_to_string(files.path("access.log")).unwrap();
    // The second one is in the format logfmt, without a time and a key.
    for first in ["# started", "# version=2 config=a"] {
        files.write("access.log", &format!("{first}\n{log}"));
        let report = files.json(&[]);
        assert_eq!(
            (&report["lines"], &report["calls"]),
            (&8.into(), &7.into()),
            "{first}"
        );
    }
}

/// The line looks like the combined format, which does not have the field of the key.
#[test]
fn first_line_of_another_program_does_not_end_the_replay() {
    let files = Files::new();
    let call = "{\"ts\":1767268800,\"user\":\"ann\"}\n";
    files.write(
        "access.log",
        &format!("Starting web [pid 7] \"v2\"\n{call}{call}"),
    );
    let report = files.json(&["--key", "user"]);
    assert_eq!((&report["lines"], &report["calls"]), (&3.into(), &2.into()));
    assert_eq!(report["broken"][0]["kind"], "format", "{report}");
    // A field that the format of the log lacks is an error of the command.
    let log = std::fs::read_to_string(Files::new().path("access.log")).unwrap();
    files.write("access.log", &log);
    let (code, _, errors) = files.replay(&["--key", "user"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("has no field `user`"), "{errors}");
}

#[test]
fn clocks_that_step_back_are_counted() {
    let files = Files::new();
    let mut log = String::new();
    let mut add = |at: u64| log.push_str(&format!("{{\"ts\":{at},\"remote_addr\":\"a\"}}\n"));
    for second in 0..200 {
        add(1_767_268_800 + second);
    }
    add(1_767_268_800 + 150);
    for second in 0..200 {
        add(1_767_265_200 + second);
    }
    files.write("access.log", &log);
    let report = files.json(&[]);
    assert_eq!(report["clock"]["late_lines"], 101);
    assert_eq!(report["clock"]["clock_steps"], 1);
    assert_eq!(report["calls"], 401);
    // Time continues after the step.
    assert_eq!(
        report["last_at"],
        1_767_268_800_000_000_u64 + (199 + 100) * 1_000_000
    );
    let (_, output, _) = files.replay(&[]);
    assert!(
        output.contains("clocks were set back 1 times, by 1 h 1 min in total"),
        "{output}"
    );
}

#[test]
fn mixed_time_zones_are_converted_and_counted() {
    let files = Files::new();
    let line = |time: &str| format!("ts={time} remote_addr=a\n");
    let times = [
        "2026-01-01T12:00:00Z",
        "2026-01-01T13:00:01+01:00",
        "2026-01-01T12:00:02",
        "1767268803",
    ];
    let log: String = times.map(line).concat();
    files.write("access.log", &log);
    let report = files.json(&[]);
    assert_eq!(report["clock"]["late_lines"], 0);
    assert_eq!(report["last_at"], 1_767_268_803_000_000_u64);
    let zones = report["zones"].as_array().unwrap();
    assert_eq!(zones.len(), 4);
    assert!(zones.contains(&json!({"zone": "+01:00", "lines": 1})));
    assert!(zones.contains(&json!({"zone": "no time zone, read as UTC", "lines": 1})));
}

#[test]
fn files_are_merged_by_time_and_decompressed() {
    let files = Files::new();
    let expected = files.json(&[])["results"].clone();
    let log = std::fs::read_to_string(files.path("access.log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let part = |start: usize| -> String {
        let lines = lines.iter().skip(start).step_by(2);
        lines.map(|line| format!("{line}\n")).collect()
    };
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(part(0).as_bytes()).unwrap();
    std::fs::write(files.path("one.gz"), gzip.finish().unwrap()).unwrap();
    let zstd = zstd::encode_all(part(1).as_bytes(), 3).unwrap();
    std::fs::write(files.path("two.zst"), zstd).unwrap();
    let (one, two) = (files.path("one.gz"), files.path("two.zst"));
    let report = files.json(&["--log", &two, &one]);
    assert_eq!(report["results"], expected);
    assert_eq!(report["clock"]["late_lines"], 0);
}

#[test]
fn truncated_compressed_file_is_an_error() {
    let files = Files::new();
    let log = std::fs::read(files.path("access.log")).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&log).unwrap();
    let gzip = gzip.finish().unwrap();
    std::fs::write(files.path("access.log"), &gzip[..gzip.len() - 10]).unwrap();
    let (code, _, errors) = files.replay(&[]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("access.log at line"), "{errors}");
}

/// One line with a wrong time neither moves the time of the later lines nor is a call.
#[test]
fn time_far_ahead_of_the_next_line_is_a_problem() {
    let files = Files::new();
    let line = |second: u32, year: u32| {
        let (minute, second) = (second / 60, second % 60);
        format!(
            "10.0.0.1 - - [01/Jan/{year}:12:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 100 \"-\" \"-\"\n"
        )
    };
    let expected: Vec<String> = (0..300).map(|second| line(second, 2026)).collect();
    files.write("access.log", &expected.concat());
    let expected_report = files.json(&[]);
    for place in [0, 100] {
        let mut lines = expected.clone();
        lines.insert(place, line(7, 2099));
        files.write("access.log", &lines.concat());
        let report = files.json(&[]);
        assert_eq!(report["results"], expected_report["results"], "{place}");
        assert_eq!(report["clock"], expected_report["clock"], "{place}");
        let broken = &report["broken"][0];
        assert_eq!((&broken["kind"], &broken["lines"]), (&json!("time"), &json!(1)));
        let example = broken["examples"][0].as_str().unwrap();
        let number = place + 1;
        assert!(
            example.contains(&format!(
                ":{number}: `01/Jan/2099:12:00:07 +0000`, expected a time that is not"
            )),
            "{example}"
        );
    }
    // A pause of the traffic is no problem, also before the last line.
    let pause = [line(0, 2026), line(0, 2027), line(1, 2027), line(0, 2028)];
    files.write("access.log", &pause.concat());
    let report = files.json(&[]);
    assert_eq!((&report["calls"], &report["broken"]), (&json!(4), &json!([])));
}
