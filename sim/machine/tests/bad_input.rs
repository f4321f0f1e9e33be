//! Boards and programs that make no sense: clear errors, no panics.

use towpath_machine::{Board, Console, Error, Image, Machine, Options};
use towpath_testing::TempDir;

fn board_error(text: &str) -> String {
    Board::parse("test.toml", text).expect_err(text).to_string()
}

#[test]
fn board_with_unknown_key_names_it() {
    let error = board_error("name = 'x'\n[harts]\ncuont = 3\n");
    assert!(error.contains("cuont") && error.contains("test.toml"), "{error}");
}

#[test]
fn board_that_makes_no_sense_says_what_would() {
    for (text, part) in [
        ("name = 'x'\n[harts]\ncount = 0\n", "1 to 64"),
        ("name = 'x'\n[harts]\nfrequency_mhz = 0\n", "frequency_mhz"),
        ("name = 'x'\n[harts]\ntimebase_hz = 0\n", "timebase_hz"),
        ("name = 'x'\n[memory]\nsize = '12'\n", "MiB"),
        ("name = 'x'\n[memory]\nsize = '5 MiB'\n", "multiple of 2 MiB"),
        ("name = 'x'\n[memory]\nbase = 4096\n", "memory.base"),
        ("name = 'x'\n[program]\nstack = '1 KiB'\n", "program.stack"),
        ("name = 'x'\n[program]\nslice_us = 0\n", "slice_us"),
        ("[harts]\ncount = 1\n", "name"),
        ("name = ", "test.toml"),
    ] {
        let error = board_error(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn board_file_that_is_missing_is_named() {
    let error = Board::read("/nonexistent/board.toml".as_ref()).expect_err("it is missing").to_string();
    assert!(error.contains("/nonexistent/board.toml"), "{error}");
}

/// A sound executable: the first random program.
fn sound() -> Vec<u8> {
    towpath_machine::verify::generate(1, 5).elf
}

#[test]
fn elf_cut_anywhere_is_an_error_or_loads_without_panic() {
    let whole = sound();
    assert!(Image::parse("p", &whole).is_ok());
    for len in (0..whole.len()).step_by(13) {
        let outcome = Image::parse("p", &whole[..len]);
        assert!(outcome.is_err(), "{len} bytes of {} were taken for a program", whole.len());
    }
}

#[test]
fn elf_of_another_architecture_is_named() {
    let mut other = sound();
    other[18] = 62;
    let error = Image::parse("prog", &other).expect_err("x86-64").to_string();
    assert!(error.contains("x86-64") && error.contains("riscv64") && error.contains("prog"), "{error}");
    let mut small = sound();
    small[4] = 1;
    assert!(Image::parse("p", &small).expect_err("32 bits").to_string().contains("32-bit"));
    assert!(Image::parse("p", b"#!/bin/sh\n").expect_err("a script").to_string().contains("not an ELF"));
}

#[test]
fn elf_with_damaged_bytes_never_panics() {
    let whole = sound();
    for at in 0..176 {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            // Either outcome is right; reaching the next line is the promise.
            let _ = Image::parse("p", &damaged);
        }
    }
}

#[test]
fn unknown_system_call_ends_the_run_with_its_name() {
    // li a7, 425 (io_uring_enter is 426): addi a7, x0, 426; ecall.
    let mut elf = sound();
    elf[0x1000..0x1008].copy_from_slice(&[0x93, 0x08, 0xa0, 0x1a, 0x73, 0, 0, 0]);
    let folder = TempDir::new();
    let path = folder.join("calls");
    std::fs::write(&path, elf).expect("the folder is writable");
    let board = Board::parse("b", "name = 'b'\n[memory]\nsize = '16 MiB'\nbase = 0x80000000\n").expect("sound");
    let mut machine =
        Machine::with_program(&board, &path, &[], &[], Options::default(), Console::captured(&[])).expect("loads");
    let error = machine.run(1000).expect_err("the call is unknown");
    assert!(matches!(error, Error::UnknownCall { number: 426, name: "io_uring_enter", .. }), "{error}");
    assert!(error.to_string().contains("io_uring_enter"), "{error}");
}
