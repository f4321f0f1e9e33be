//! Which crate may use which. The table is the design's; `cargo metadata` says what is.

use std::collections::BTreeMap;
use std::process::Command;

/// `(crate, the project's crates it may depend on)`, outside its own tests. What is not listed may use none.
const ALLOWED: &[(&str, &[&str])] = &[
    ("cbuf", &[]),
    ("coro", &[]),
    ("inet", &["cbuf"]),
    ("device", &["cbuf"]),
    ("copy", &["cbuf"]),
    ("log", &["device", "cbuf"]),
    ("rows", &["cbuf", "regs"]),
    ("libos", &["inet", "device", "copy", "log", "rows", "cbuf", "coro"]),
    ("service", &["inet", "device", "copy", "log", "rows", "cbuf"]),
    ("malloc", &["cbuf"]),
    ("posix", &["libos", "cbuf"]),
    ("capi", &["libos", "copy", "cbuf"]),
    ("isa", &[]),
    ("core", &["isa", "mem"]),
    ("mem", &[]),
    ("lazy", &["mem"]),
    ("nic", &["mem", "ict", "regs"]),
    ("ict", &["mem", "regs"]),
    ("machine", &["isa", "core", "mem", "lazy", "ict", "nic", "regs"]),
    ("regs", &[]),
    ("echo", &["libos", "cbuf"]),
    ("kv", &["libos", "cbuf"]),
    ("relay", &["libos", "cbuf"]),
    ("proxy", &["libos", "cbuf"]),
    ("txn", &["libos", "cbuf"]),
    ("imgpipe", &["libos", "cbuf", "service"]),
    ("web", &["libos", "cbuf", "service"]),
    ("testing", &[]),
    ("house", &[]),
];

/// These stand around the wings and may use anything but each other's insides.
const FREE: &[&str] = &["towpath", "bench", "conformance", "world", "system", "scripts", "fuzz", "python", "verify"];

fn short(name: &str) -> &str {
    name.strip_prefix("towpath-").unwrap_or(name)
}

#[test]
fn crates_depend_only_along_the_allowed_arrows() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(towpath_testing::root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = short(package["name"].as_str().expect("name"));
        if FREE.contains(&name) {
            continue;
        }
        let may = allowed.get(name).copied().unwrap_or(&[]);
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if dependency["kind"] == "dev" || dependency["path"].is_null() {
                continue;
            }
            let target = short(dependency["name"].as_str().expect("name"));
            if !may.contains(&target) {
                wrong.push(format!("{name} -> {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that the table does not allow: {wrong:?}");
}

/// Crates whose sources promise to hold no unsafe code at all.
const SAFE: &[&str] = &["os/inet", "sim", "apps"];

#[test]
fn crates_promised_safe_forbid_unsafe_code() {
    let root = towpath_testing::root();
    let mut checked = 0;
    for place in SAFE {
        for entry in find_crate_roots(&root.join(place)) {
            let text = std::fs::read_to_string(&entry).expect("a crate root is readable");
            assert!(text.contains("#![forbid(unsafe_code)]"), "{} must forbid unsafe code", entry.display());
            checked += 1;
        }
    }
    assert!(checked > 0, "no crate root was found");
}

fn find_crate_roots(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for candidate in ["src/lib.rs", "src/main.rs"] {
        let path = dir.join(candidate);
        if path.is_file() {
            found.push(path);
        }
    }
    if found.is_empty() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                found.extend(find_crate_roots(&entry.path()));
            }
        }
    }
    found
}
