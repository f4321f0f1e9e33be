//! The steps of `make test` can be started, and nothing in the tree names a machine of its makers.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn steps_are_executable_and_numbered() {
    let dir = towpath_testing::root().join("tests/steps");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).expect("tests/steps exists").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(name.len() > 6 && name[..2].parse::<u8>().is_ok() && name.ends_with(".sh"), "{name}: NN-name.sh");
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{name} is not executable");
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn tracked_files_name_no_path_of_a_makers_machine() {
    let root = towpath_testing::root();
    // Spelt in two halves, so that this file does not name them either.
    let forbidden = [concat!("/work", "/"), concat!("/roo", "t/"), concat!(".libra", "ry")];
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output();
    let Some(listed) = listed.ok().filter(|out| out.status.success()) else {
        towpath_testing::skip("tracked_files_name_no_path_of_a_makers_machine", "this is no git checkout");
        return;
    };
    let mut found = Vec::new();
    for name in listed.stdout.split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let name = String::from_utf8_lossy(name);
        let Ok(text) = std::fs::read_to_string(root.join(&*name)) else { continue };
        found.extend(forbidden.iter().filter(|f| text.contains(**f)).map(|f| format!("{name}: {f}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}
