//! The C library as C programs see it: the examples compiled with the machine's own compiler against the header and run,
//! and header, man pages and exported symbols held against one another.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use towpath_testing::{Child, TempDir, root, skip, which};

/// Where cargo put libtowpath.so: beside this test, or one folder up.
fn library() -> PathBuf {
    let here = std::env::current_exe().expect("this test has a path");
    let deps = here.parent().expect("it lies in a folder");
    [deps, deps.parent().expect("deps lies in the profile's folder")]
        .into_iter()
        .find(|dir| dir.join("libtowpath.so").is_file())
        .expect("cargo builds the shared library with this test")
        .to_path_buf()
}

fn compile(example: &str, to: &Path, link: &[String]) -> PathBuf {
    let out = to.join(example);
    let include = root().join("os/capi/include");
    let source = root().join(format!("os/capi/examples/{example}.c"));
    let done = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(include)
        .arg(source)
        .arg("-o")
        .arg(&out)
        .args(link)
        .output()
        .expect("a C compiler runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    out
}

fn shared() -> Vec<String> {
    let dir = library().display().to_string();
    vec![format!("-L{dir}"), "-ltowpath".into(), format!("-Wl,-rpath,{dir}"), "-lpthread".into()]
}

/// Starts the echo server on a free port of `address`; where it listens.
fn serve(program: &Path, address: &str, connections: u32) -> (Child, String) {
    let mut server = Command::new(program)
        .args([address, &connections.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("its output is piped")).read_line(&mut line).expect("it says where");
    let place = line.trim().strip_prefix("listening on ").expect("it listens").to_string();
    (Child(server), place)
}

#[test]
fn echo_examples_over_tcp_return_every_byte() {
    if which("cc").is_none() {
        return skip("echo_examples_over_tcp_return_every_byte", "there is no C compiler");
    }
    let dir = TempDir::new();
    let (server, client) =
        (compile("echo_server", dir.path(), &shared()), compile("echo_client", dir.path(), &shared()));
    for (address, count, size) in
        [("127.0.0.1:0", "2000", "64"), ("127.0.0.1:0", "20", "300000"), ("[::1]:0", "50", "1")]
    {
        let (mut server, place) = serve(&server, address, 1);
        let client = Command::new(&client).args([&place, count, size]).output().expect("the client runs");
        assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
        let text = String::from_utf8_lossy(&client.stdout).into_owned();
        assert_eq!(text.trim(), format!("{count} messages of {size} bytes came back"));
        assert!(server.0.wait().expect("the server ends").success());
    }
}

#[test]
fn echo_client_without_a_server_says_what_to_do() {
    if which("cc").is_none() {
        return skip("echo_client_without_a_server_says_what_to_do", "there is no C compiler");
    }
    let dir = TempDir::new();
    let client = compile("echo_client", dir.path(), &shared());
    let out = Command::new(client).arg("127.0.0.1:1").output().expect("the client runs");
    assert!(!out.status.success());
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(text.contains("refused") && text.contains("nothing listens there"), "{text}");
}

#[test]
fn promises_of_the_header_hold_with_shared_and_static_library() {
    if which("cc").is_none() {
        return skip("promises_of_the_header_hold_with_shared_and_static_library", "there is no C compiler");
    }
    let dir = TempDir::new();
    let archive = library().join("libtowpath.a");
    let mut ways = vec![shared()];
    if archive.is_file() {
        let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"].map(String::from);
        ways.push([vec![archive.display().to_string()], system.to_vec()].concat());
    }
    for link in ways {
        let program = compile("promises", dir.path(), &link);
        let out = Command::new(program).output().expect("the program runs");
        let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{errors}");
        assert!(text.ends_with(" promises kept\n"), "{text}{errors}");
    }
}

/// The prototypes of the header, white space folded.
fn prototypes() -> Vec<String> {
    let header = std::fs::read_to_string(root().join("os/capi/include/towpath.h")).expect("the header is there");
    header
        .lines()
        .filter(|line| line.ends_with(");") && line.contains("tp_") && !line.starts_with([' ', '#', '/']))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn name_of(prototype: &str) -> String {
    let before = prototype.split('(').next().expect("a prototype has a parenthesis");
    before.rsplit([' ', '*']).next().expect("and a name").to_string()
}

#[test]
fn header_and_exported_symbols_are_the_same() {
    if which("nm").is_none() {
        return skip("header_and_exported_symbols_are_the_same", "nm is missing (package binutils)");
    }
    let declared: BTreeSet<String> = prototypes().iter().map(|p| name_of(p)).collect();
    assert!(declared.len() > 40, "{} prototypes", declared.len());
    let out = Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("libtowpath.so")).output();
    let text = String::from_utf8(out.expect("nm runs").stdout).expect("names are text");
    let exported: BTreeSet<String> =
        text.lines().filter_map(|l| l.split(' ').nth(2)).filter(|n| !n.starts_with('_')).map(String::from).collect();
    assert_eq!(exported, declared);
}

#[test]
fn man_pages_show_every_prototype_as_the_header_has_it() {
    let mut pages = String::new();
    for entry in std::fs::read_dir(root().join("docs/man")).expect("there are man pages").flatten() {
        if entry.path().extension().is_some_and(|e| e == "3") {
            pages.push_str(&std::fs::read_to_string(entry.path()).expect("a page is text"));
        }
    }
    // The pages set prototypes in bold, with quotes around the line.
    let shown: BTreeSet<String> = pages
        .lines()
        .filter_map(|l| l.strip_prefix(".B \""))
        .map(|l| l.trim_end_matches('"').split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|l| l.ends_with(");"))
        .collect();
    let declared: BTreeSet<String> = prototypes().into_iter().collect();
    assert_eq!(shown, declared);
}
