//! Linux programs on timing cores: the same output as on the functional core, the same cycles in every run, every
//! load checked against the oracle.

use std::path::PathBuf;
use std::process::Command;
use towpath_machine::{Board, Console, CoreKind, Machine, Options, Outcome, Timed};
use towpath_testing::TempDir;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <pthread.h>
#include <string.h>
#include <stdlib.h>
static long sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *work(void *a) {
    long s = 0;
    for (long i = 0; i < 4000; i++) s += i ^ (long)a;
    pthread_mutex_lock(&lock);
    sum += s;
    pthread_mutex_unlock(&lock);
    return 0;
}
int main(int argc, char **argv) {
    pthread_t t[4];
    for (long i = 0; i < 4; i++) pthread_create(&t[i], 0, work, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    char *a = malloc(50000), *b = malloc(50000);
    for (int i = 0; i < 50000; i++) a[i] = i * 7;
    memcpy(b + 3, a, 49000);
    double x = 0;
    for (int i = 0; i < 400; i++) x += b[3 + i * 100] / 3.0;
    printf("sum %ld cmp %d x %.3f %s\n", sum, memcmp(a, b + 3, 49000), x, argv[1]);
    return 7;
}
"#;

/// The program's path, or `None` after saying why there is none.
fn compiled(dir: &TempDir, test: &str) -> Option<PathBuf> {
    let (source, program) = (dir.path().join("t.c"), dir.path().join("t"));
    std::fs::write(&source, PROGRAM).expect("the folder is writable");
    let mut gcc = Command::new("riscv64-linux-gnu-gcc");
    gcc.args(["-O2", "-static", "-o"]).arg(&program).arg(&source).arg("-lpthread");
    match gcc.status() {
        Ok(status) => {
            assert!(status.success(), "the test program does not compile");
            Some(program)
        }
        Err(e) => {
            towpath_testing::skip(test, &format!("riscv64-linux-gnu-gcc: {e} (package gcc-riscv64-linux-gnu)"));
            None
        }
    }
}

fn board(harts: usize) -> Board {
    let text =
        format!("name = \"t\"\n[harts]\ncount = {harts}\nfrequency_mhz = 4000\n[program]\nframes = \"scattered\"\n");
    Board::parse("t", &text).expect("a well-formed board")
}

fn timed(board: &Board, kind: CoreKind, program: &std::path::Path, check: bool) -> (String, Timed) {
    let arguments = ["hello".to_string()];
    let parts = (program, &arguments[..], &[][..]);
    let mut machine = Timed::with_program(board, kind, check, parts, Options::default(), Console::captured(b""))
        .expect("the program loads");
    assert_eq!(machine.run(u64::MAX).expect("the program ends"), Outcome::Exited(7));
    (String::from_utf8_lossy(machine.output().0).into_owned(), machine)
}

#[test]
fn timed_linux_program_prints_what_the_functional_core_prints() {
    let dir = TempDir::new();
    let Some(program) = compiled(&dir, "timed_linux_program_prints_what_the_functional_core_prints") else { return };
    for harts in [1, 4] {
        let board = board(harts);
        let arguments = ["hello".to_string()];
        let console = Console::captured(b"");
        let mut plain = Machine::with_program(&board, &program, &arguments, &[], Options::default(), console)
            .expect("the program loads");
        assert_eq!(plain.run(u64::MAX).expect("the program ends"), Outcome::Exited(7));
        let want = String::from_utf8_lossy(plain.output().0).into_owned();
        assert!(want.contains("cmp 0") && want.contains("hello"), "{want}");
        for kind in [CoreKind::InOrder, CoreKind::OutOfOrder] {
            let (got, machine) = timed(&board, kind, &program, true);
            assert_eq!(got, want, "{kind:?} with {harts} harts");
            assert!(machine.cluster().memory().checked() > 10_000);
            let (again, unchecked) = timed(&board, kind, &program, false);
            assert_eq!(again, want);
            assert_eq!(machine.cluster().now(), unchecked.cluster().now(), "{kind:?}: the oracle changed the cycles");
        }
    }
}

#[test]
fn timed_pipeline_trace_is_in_the_kanata_format() {
    let dir = TempDir::new();
    let Some(program) = compiled(&dir, "timed_pipeline_trace_is_in_the_kanata_format") else { return };
    for kind in [CoreKind::InOrder, CoreKind::OutOfOrder] {
        let arguments = ["x".to_string()];
        let parts = (program.as_path(), &arguments[..], &[][..]);
        let mut machine =
            Timed::with_program(&board(1), kind, false, parts, Options::default(), Console::captured(b""))
                .expect("the program loads");
        machine.trace(500);
        machine.run(2000).expect("it runs");
        let text = machine.cluster().trace_text(0).expect("a trace was asked for");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("Kanata\t0004"));
        assert!(lines.next().is_some_and(|l| l.starts_with("C=\t")));
        let (mut open, mut retired) = (std::collections::BTreeSet::new(), 0);
        for line in lines {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[0] {
                "I" => assert!(open.insert(fields[1].to_string()), "{line}"),
                "L" | "S" => assert!(open.contains(fields[1]), "{line}"),
                "R" => {
                    assert!(open.remove(fields[1]), "{line}");
                    retired += 1;
                }
                "C" => assert!(fields[1].parse::<u64>().is_ok_and(|n| n > 0), "{line}"),
                other => panic!("a line of kind {other}"),
            }
        }
        assert!(retired == 500 && open.is_empty(), "{kind:?}: {retired}");
    }
}
