//! Every benchmark runs in its tiny form and keeps the JSON contract, so that none of them rots.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_towpath-bench");
/// Generous, so that a loaded machine does not fail it: a benchmark that hangs is what it is for.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn every_benchmark_in_smoke_form_prints_the_contract() {
    let listed = Command::new(PROGRAM).arg("--list").output().expect("the benchmark binary starts");
    let names = String::from_utf8(listed.stdout).expect("names are text");
    assert!(names.lines().count() > 0);
    for name in names.lines() {
        check(name, &run(name));
    }
}

fn run(name: &str) -> String {
    let folder = towpath_testing::TempDir::new();
    let (out, err) = (folder.join("out"), folder.join("err"));
    let mut child = towpath_testing::Child(
        Command::new(PROGRAM)
            .args([name, "--smoke", "--json"])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).expect("a file for the output"))
            .stderr(std::fs::File::create(&err).expect("a file for the errors"))
            .spawn()
            .expect("the benchmark binary starts"),
    );
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("the child can be waited for") {
            break status;
        }
        assert!(start.elapsed() < LIMIT, "{name} did not finish in {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let errors = std::fs::read_to_string(&err).unwrap_or_default();
    assert!(status.success(), "{name} failed: {errors}");
    std::fs::read_to_string(&out).expect("the output is text")
}

fn check(name: &str, text: &str) {
    let json: serde_json::Value =
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{name} printed no single JSON object: {e}\n{text}"));
    assert_eq!(json["bench"], name);
    for key in ["commit", "machine"] {
        assert!(json[key].is_string(), "{name}: {key} is missing");
    }
    let results = json["results"].as_array().unwrap_or_else(|| panic!("{name}: results are missing"));
    let skipped = json["skipped"].as_array().unwrap_or_else(|| panic!("{name}: skipped is missing"));
    assert!(!results.is_empty() || !skipped.is_empty(), "{name} neither measured nor skipped anything");
    for row in results {
        assert!(row["value"].is_number(), "{name}: {} has no value", row["name"]);
        assert!(row["n"].as_u64().is_some_and(|n| n > 0), "{name}: {} has no samples", row["name"]);
        assert!(["lower", "higher"].contains(&row["better"].as_str().unwrap_or("")), "{name}: better is wrong");
        assert!(row["baselines"].is_array(), "{name}: {} has no baselines", row["name"]);
    }
    for part in skipped {
        assert!(part["why"].as_str().is_some_and(|w| !w.is_empty()), "{name}: a skip gives no reason");
    }
}
