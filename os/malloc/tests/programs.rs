//! Unmodified programs on the malloc replacement.

use std::path::PathBuf;
use std::process::{Command, Output};
use towpath_testing::{TempDir, root, skip, which};

/// The library under test, built beside this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let deps = exe.parent().expect("a folder");
    let name = "libtowpath_malloc.so";
    let found = [deps.join(name), deps.parent().expect("a folder").join(name)].into_iter().find(|p| p.is_file());
    found.expect("cargo builds the library before its tests")
}

fn on_towpath(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env_remove("TOWPATH_MALLOC_ABORT");
    command
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs it, and fails on an exit status or on any report of the allocator's.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = text(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    assert!(!text.contains("towpath malloc:"), "{text}");
    text
}

fn stress(dir: &TempDir) -> String {
    let program = dir.join("stress");
    let source = root().join("os/malloc/tests/stress.c");
    let built = Command::new("cc")
        .args(["-O1", "-g", "-fno-builtin", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .expect("cc starts");
    assert!(built.status.success(), "{}", text(&built));
    program.to_str().expect("a readable path").to_string()
}

#[test]
fn threads_that_free_each_others_objects_and_fork_lose_nothing() {
    let dir = TempDir::new();
    let program = stress(&dir);
    assert!(run(&mut on_towpath(&program)).contains("all held"));
}

#[test]
fn wrong_frees_are_reported_and_ignored() {
    let dir = TempDir::new();
    let program = stress(&dir);
    let output = on_towpath(&program).arg("misuse").output().expect("it starts");
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for word in ["double free", "inside an object", "another allocator"] {
        assert_eq!(text.matches(word).count(), 1, "{word}: {text}");
    }
    let stopped = on_towpath(&program).arg("misuse").env("TOWPATH_MALLOC_ABORT", "1").output().expect("it starts");
    assert!(!stopped.status.success(), "asked to stop at the first wrong free");
}

#[test]
fn small_address_space_still_works() {
    let dir = TempDir::new();
    let program = stress(&dir);
    let script = format!("ulimit -v 4000000; LD_PRELOAD={} ROUNDS=500 {program}", library().display());
    assert!(run(Command::new("sh").args(["-c", &script])).contains("all held"));
}

#[test]
fn ls_and_git_print_what_they_print_otherwise() {
    assert_eq!(run(on_towpath("ls").args(["-lR", "/etc"])), run(Command::new("ls").args(["-lR", "/etc"])));
    if which("git").is_none() {
        return skip("ls_and_git_print_what_they_print_otherwise", "git is not installed");
    }
    let args = ["-c", "safe.directory=*", "log", "--stat", "-20"];
    let plain = run(Command::new("git").args(args).current_dir(root()));
    assert_eq!(run(on_towpath("git").args(args).current_dir(root())), plain);
}

#[test]
fn python_passes_its_own_tests() {
    let name = "python_passes_its_own_tests";
    let has_tests = Command::new("python3").args(["-c", "import test.test_dict"]).output();
    if !has_tests.is_ok_and(|o| o.status.success()) {
        return skip(name, "python3 with its test modules (libpython3.11-testsuite) is not installed");
    }
    let dir = TempDir::new();
    let modules = ["test_list", "test_dict", "test_json", "test_set", "test_thread", "test_bytes"];
    // The interpreter's own small-object allocator is switched off, so that every object is ours.
    let mut command = on_towpath("python3");
    command.env("PYTHONMALLOC", "malloc").args(["-m", "test"]).args(modules).current_dir(dir.path());
    run(&mut command);
}

#[test]
fn library_calls_no_other_allocator() {
    let Some(nm) = which("nm") else { return skip("library_calls_no_other_allocator", "binutils is not installed") };
    let output = Command::new(nm).args(["-D", "--undefined-only"]).arg(library()).output().expect("nm starts");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(symbols.contains("mmap"), "{symbols}");
    for wanted in ["__libc_malloc", "__libc_free", "sbrk", "__tls_get_addr_slow", "dlsym"] {
        let word = |line: &str| line.split_whitespace().last().map(|s| s.split('@').next() == Some(wanted));
        assert!(!symbols.lines().any(|l| word(l) == Some(true)), "{wanted} is called");
    }
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().expect("nm starts");
    let defined = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in [
        "malloc",
        "calloc",
        "realloc",
        "free",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "pvalloc",
        "malloc_usable_size",
        "reallocarray",
    ] {
        assert!(defined.lines().any(|l| l.ends_with(&format!(" {name}"))), "{name} is not defined");
    }
}
