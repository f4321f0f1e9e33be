//! The documents tell the truth where a machine can tell: their links lead somewhere, folders they name exist.

use std::path::{Path, PathBuf};

fn documents() -> Vec<PathBuf> {
    let root = towpath_testing::root();
    let mut found = Vec::new();
    collect(&root, &mut found);
    found
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("the tree is readable").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The targets of `[text](target)` outside code blocks.
fn links(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            if let Some(end) = rest.find(')') {
                out.push(rest[..end].to_string());
                rest = &rest[end..];
            }
        }
    }
    out
}

#[test]
fn links_of_documents_lead_to_files_that_exist() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document is text");
        for link in links(&text) {
            if link.contains("://") || link.starts_with('#') || link.starts_with("mailto:") {
                continue;
            }
            let file = link.split('#').next().unwrap_or("");
            if !document.parent().expect("a file has a folder").join(file).exists() {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

#[test]
fn decisions_are_numbered_without_gaps_and_listed_once() {
    let dir = towpath_testing::root().join("docs/decisions");
    let mut numbers: Vec<u32> = std::fs::read_dir(dir)
        .expect("docs/decisions exists")
        .flatten()
        .filter_map(|e| e.file_name().to_string_lossy().get(..4).and_then(|n| n.parse().ok()))
        .collect();
    numbers.sort_unstable();
    let expected: Vec<u32> = (1..=numbers.len() as u32).collect();
    assert_eq!(numbers, expected, "decisions are numbered 0001, 0002, ...");
}
