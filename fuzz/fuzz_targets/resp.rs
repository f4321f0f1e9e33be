//! Any bytes, cut anywhere, into the RESP parser and the commands: no panic, the same requests however the bytes are
//! cut, one reply to each request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_cbuf::{Memory, MemoryConfig, Sga};
use towpath_kv::commands::execute;
use towpath_kv::config::Config;
use towpath_kv::resp::{Gather, Input, Limits};
use towpath_kv::state::State;

/// The requests in `data` fed in pieces of `cut` bytes, and how it ended.
fn parse(memory: &Memory, data: &[u8], cut: usize) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let limits = Limits { bulk_max: 1 << 16, query_max: 1 << 20, unauthenticated: false };
    let mut input = Input::new(memory.clone());
    let mut requests = Vec::new();
    for piece in data.chunks(cut) {
        let piece = Sga::from(memory.copy_from(piece).expect("memory"));
        if let Err(error) = input.feed(&piece) {
            return (requests, Some(error.to_string()));
        }
        loop {
            match input.next(&limits) {
                Ok(true) => {
                    let args = input.args();
                    requests.push((0..args.len()).map(|i| args.get(i).into_owned()).collect());
                }
                Ok(false) => break,
                Err(error) => return (requests, Some(error.to_string())),
            }
        }
        input.settle().expect("memory");
    }
    (requests, None)
}

fn run(memory: &Memory, data: &[u8]) {
    let mut state = State::new(Config::default(), memory.clone(), 1, 1_000_000);
    state.config.maxmemory = 1 << 20;
    let mut session = state.connect(String::new(), String::new());
    let mut out = Gather::new(memory.clone());
    let mut input = Input::new(memory.clone());
    let limits = Limits { bulk_max: 1 << 16, query_max: 1 << 20, unauthenticated: false };
    if input.feed(&Sga::from(memory.copy_from(data).expect("memory"))).is_err() {
        return;
    }
    while let Ok(true) = input.next(&limits) {
        let args = input.args();
        // Long strings made of nothing are right, and slow to fuzz.
        if args.is(0, "setrange") {
            continue;
        }
        execute(&mut state, &mut session, &args, &mut out);
        out.take().expect("memory");
    }
    state.disconnect(&mut session);
}

fuzz_target!(|data: &[u8]| {
    let memory = Memory::new(MemoryConfig::default()).expect("memory");
    let Some((first, rest)) = data.split_first() else { return };
    let whole = parse(&memory, rest, rest.len().max(1));
    assert_eq!(parse(&memory, rest, usize::from(*first) + 1), whole);
    assert_eq!(parse(&memory, rest, 1), whole);
    run(&memory, rest);
});
