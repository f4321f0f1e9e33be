//! Frames of a hostile network into a stack that listens, connects and holds datagrams: nothing panics, loops or grows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_cbuf::{Buf, Memory, MemoryConfig, Sga};
use towpath_inet::{Cidr, Config, Event, Finish, Mac, Nanos, Received, Sink, Stack};

struct Count(usize);

impl Sink for Count {
    fn transmit(&mut self, header: &[u8], payload: &[Buf], _: Finish) {
        assert!(header.len() >= 14 && header.len() + payload.iter().map(|b| b.len()).sum::<usize>() <= 65_550);
        self.0 += 1;
    }
}

fuzz_target!(|data: &[u8]| {
    let mut config = Config::new(Mac([2, 0, 0, 0, 0, 1]), [1, 2, 3, 4]);
    config.addresses.push(Cidr::new([10, 0, 0, 1], 24));
    let memory = Memory::new(MemoryConfig::default()).expect("a memory");
    let mut now = Nanos::ZERO;
    let mut stack = Stack::new(&config, memory.clone(), now);
    let mut wire = Count(0);
    let _ = stack.tcp_listen("0.0.0.0:80".parse().expect("an address"), 8);
    let _ = stack.udp_bind("0.0.0.0:53".parse().expect("an address"));
    let _ = stack.tcp_connect("10.0.0.2:80".parse().expect("an address"), None, now, &mut wire);
    let mut rest = data;
    let mut frames = 0;
    while let [len, skip, tail @ ..] = rest {
        let n = (usize::from(*len) * 8).min(tail.len());
        let (frame, after) = tail.split_at(n);
        // Half of the frames say that the device verified their checksums, so that the fuzzer gets past them.
        let received = Received { checksum_ok: skip & 1 == 0 };
        stack.ingest(memory.copy_from(frame).expect("memory"), received, now, &mut wire);
        frames += 1;
        now = Nanos(now.0 + (u64::from(*skip) << 22));
        stack.poll(now, &mut wire);
        while let Some(event) = stack.next_event() {
            react(&mut stack, event, now, &mut wire, &memory);
        }
        rest = after;
    }
    assert!(wire.0 <= 64 * (frames + 4), "{} frames in answer to {frames}", wire.0);
});

/// Answers whatever a stream brings, so that data states are reached too.
fn react(stack: &mut Stack, event: Event, now: Nanos, wire: &mut Count, memory: &Memory) {
    if let Event::Tcp(id, _) = event {
        while let Ok(Some(data)) = stack.tcp_pop(id, 4096, now, wire) {
            if data.is_empty() {
                let _ = stack.tcp_close(id, now, wire);
                return;
            }
        }
        let answer = Sga::from(memory.copy_from(b"answer").expect("memory"));
        let _ = stack.tcp_push(id, answer, now, wire);
    }
}
