//! A program that frees everything returns most of it to the system by itself: no call of `trim` or `maintain`.
#![cfg(not(miri))]

use std::ptr::NonNull;
use towpath_cbuf::{Memory, MemoryConfig};

/// Written bytes of the test.
const BYTES: usize = 384 << 20;
/// What may stay: idle superblocks within the hysteresis and what magazines keep.
const MAY_STAY: usize = 96 << 20;
/// The same when objects were freed in another order than they were made: each object in a magazine may then keep a
/// superblock, until a slow path finds time to halve the magazines.
const MAY_STAY_SHUFFLED: usize = 192 << 20;

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number of pages") * 4096
}

fn fill(memory: &Memory) -> Vec<NonNull<u8>> {
    let sizes = [200usize, 1 << 10, 4 << 10, 20 << 10, 64 << 10, 300 << 10, 1 << 20, 3 << 20];
    let mut held = Vec::with_capacity(BYTES / sizes.len() / 64);
    for len in sizes {
        for _ in 0..BYTES / sizes.len() / len {
            let object = memory.malloc(len).expect("memory");
            // SAFETY: a fresh object of `len` bytes.
            unsafe { object.as_ptr().write_bytes(1, len) };
            held.push(object);
        }
    }
    held
}

fn free_all(memory: &Memory, held: &mut Vec<NonNull<u8>>) {
    for object in held.drain(..) {
        // SAFETY: allocated by this memory and freed once.
        unsafe { memory.free(object) }.expect("a live object");
    }
}

#[test]
fn memory_of_a_program_that_freed_everything_goes_back_by_itself() {
    let config = MemoryConfig { limit: 1 << 30, frame_bytes: 4 << 20, ..MemoryConfig::default() };
    let memory = Memory::new(config).expect("memory");
    let before = resident();
    for shuffled in [false, true] {
        let mut held = fill(&memory);
        assert!(memory.stats().heap_held >= BYTES, "{} held", memory.stats().heap_held);
        if shuffled {
            // A fixed order that is far from that of allocation.
            let n = held.len();
            (0..n).for_each(|i| held.swap(i, i.wrapping_mul(0x9e37_79b9) % n));
        }
        free_all(&memory, &mut held);
        drop(held);
        let bound = if shuffled { MAY_STAY_SHUFFLED } else { MAY_STAY };
        let stays = memory.stats().heap_held;
        assert!(stays <= bound, "shuffled {shuffled}: {} MB held after everything was freed", stays >> 20);
        let grown = resident().saturating_sub(before);
        assert!(grown <= bound, "shuffled {shuffled}: {} MB resident after everything was freed", grown >> 20);
    }
    // A program that lives on at its ease keeps little: each of its slow paths may give half of the rest back.
    for _ in 0..12 {
        std::thread::sleep(std::time::Duration::from_millis(60));
        let mut few = (0..2000).map(|_| memory.malloc(500).expect("memory")).collect();
        free_all(&memory, &mut few);
    }
    let stays = memory.stats().heap_held;
    assert!(stays <= 24 << 20, "{} MB held after a while", stays >> 20);
}
