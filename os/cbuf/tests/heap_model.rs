//! The heap beside a shadow: every live object has its own bytes, which nobody else's allocation, free or misuse may
//! change; no object is handed out while the program or a buffer refers to it.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::ptr::NonNull;
use towpath_cbuf::{Buf, Error, Memory, MemoryConfig, Misuse};

/// An object of the program's and the buffers on it.
struct Live {
    ptr: NonNull<u8>,
    len: usize,
    fill: u8,
    freed: bool,
    holds: Vec<Buf>,
}

impl Live {
    fn check(&self, seed: u64) {
        // SAFETY: live: not freed, or a buffer holds it.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) };
        assert!(bytes.iter().all(|&b| b == self.fill), "seed {seed}: an object changed under its holder");
    }
}

fn length(rng: &mut SmallRng) -> usize {
    match rng.random_range(0..100) {
        0..70 => rng.random_range(1..300),
        70..97 => rng.random_range(1..9000),
        _ if cfg!(miri) => 10_000,
        97..99 => rng.random_range(1..200_000),
        _ => rng.random_range(1..6 << 20),
    }
}

fn allocate(rng: &mut SmallRng, memory: &Memory, live: &mut Vec<Live>, seed: u64) {
    let (len, fill) = (length(rng), rng.random());
    let ptr = memory.malloc(len).expect("memory");
    for other in live.iter() {
        let (a, b) = (other.ptr.as_ptr().addr(), ptr.as_ptr().addr());
        assert!(a + other.len <= b || b + len <= a, "seed {seed}: two live objects overlap");
    }
    // SAFETY: a fresh object of `len` bytes.
    unsafe { ptr.as_ptr().write_bytes(fill, len) };
    live.push(Live { ptr, len, fill, freed: false, holds: Vec::new() });
}

/// Frees what may be freed, and tries what may not.
fn release(rng: &mut SmallRng, memory: &Memory, live: &mut Vec<Live>, seed: u64) {
    if live.is_empty() {
        return;
    }
    let i = rng.random_range(0..live.len());
    live[i].check(seed);
    // SAFETY: freed once; every other attempt is refused.
    unsafe {
        if live[i].freed {
            let again = memory.free(live[i].ptr);
            assert!(
                matches!(again, Err(Error::Misuse(Misuse::DoubleFree | Misuse::Foreign))),
                "seed {seed}: {again:?}"
            );
            live[i].holds.pop();
        } else if live[i].len > 32 && live[i].len < 4 << 20 && rng.random_bool(0.2) {
            let inside = live[i].ptr.add(rng.random_range(1..16));
            assert!(matches!(memory.free(inside), Err(Error::Misuse(Misuse::Interior))), "seed {seed}");
        } else {
            memory.free(live[i].ptr).expect("a live object");
            live[i].freed = true;
        }
    }
    if live[i].freed && live[i].holds.is_empty() {
        live.swap_remove(i);
    }
}

fn hold(rng: &mut SmallRng, memory: &Memory, live: &mut [Live], seed: u64) {
    if live.is_empty() {
        return;
    }
    let object = &mut live[rng.random_range(0..live.len())];
    if object.freed || object.len > 4 << 20 {
        return;
    }
    let from = rng.random_range(0..object.len);
    // SAFETY: the object is live and is not written again.
    let buf = unsafe { memory.hold(object.ptr.add(from), object.len - from) }.expect("a live object");
    assert!(buf.iter().all(|&b| b == object.fill), "seed {seed}");
    object.holds.push(buf);
}

#[test]
fn heap_random_operations_never_hand_out_an_object_in_use() {
    let seeds = if cfg!(miri) {
        2
    } else if std::env::var_os("TOWPATH_SOAK").is_some() {
        1000
    } else {
        20
    };
    for seed in 0..seeds {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let memory = Memory::new(MemoryConfig::default()).expect("memory");
        let mut live = Vec::new();
        for _ in 0..if cfg!(miri) { 150 } else { 2000 } {
            match rng.random_range(0..100) {
                0..45 => allocate(rng, &memory, &mut live, seed),
                45..80 => release(rng, &memory, &mut live, seed),
                80..95 => hold(rng, &memory, &mut live, seed),
                95..98 => memory.maintain(),
                _ => memory.trim(),
            }
        }
        for object in live.drain(..) {
            object.check(seed);
            if !object.freed {
                // SAFETY: not used after.
                unsafe { memory.free(object.ptr) }.expect("a live object");
            }
        }
        assert_eq!(memory.stats().buffers_in_use, 0, "seed {seed}");
    }
}
