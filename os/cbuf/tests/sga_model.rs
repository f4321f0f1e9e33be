//! Random steps on scatter-gather arrays beside a vector of bytes.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use towpath_cbuf::{Buf, Memory, MemoryConfig, Sga, counters};

fn seeds() -> std::ops::Range<u64> {
    if cfg!(miri) {
        0..2
    } else if std::env::var_os("TOWPATH_SOAK").is_some() {
        0..3000
    } else {
        0..60
    }
}

fn steps() -> usize {
    if cfg!(miri) { 60 } else { 400 }
}

fn fresh(rng: &mut SmallRng, memory: &Memory) -> (Buf, Vec<u8>) {
    let len = rng.random_range(0..50);
    let bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
    let mut buf = if rng.random_bool(0.3) { memory.alloc_frame(len) } else { memory.alloc(len) }.expect("memory");
    buf.copy_from_slice(&bytes);
    (buf.freeze(), bytes)
}

/// One random step on an array and its model.
fn sga_step(rng: &mut SmallRng, memory: &Memory, sga: &mut Sga, model: &mut Vec<u8>, kept: &mut Vec<(Sga, Vec<u8>)>) {
    let at = rng.random_range(0..=model.len());
    match rng.random_range(0..9) {
        0 => {
            let (buf, bytes) = fresh(rng, memory);
            sga.push_back(buf);
            model.extend(bytes);
        }
        1 => {
            let (buf, bytes) = fresh(rng, memory);
            sga.push_front(buf);
            model.splice(0..0, bytes);
        }
        2 => kept.push((sga.split_to(at), model.drain(..at).collect())),
        3 => kept.push((sga.split_off(at), model.split_off(at))),
        4 => {
            sga.trim_front(at);
            model.drain(..at);
        }
        5 => {
            sga.trim_back(at);
            model.truncate(model.len() - at);
        }
        6 => kept.push((sga.clone(), model.clone())),
        7 if !kept.is_empty() => {
            let (mut other, bytes) = kept.swap_remove(rng.random_range(0..kept.len()));
            sga.append(&mut other);
            model.extend(bytes);
            assert!(other.is_empty() && other.segments().is_empty());
        }
        _ => kept.truncate(4),
    }
}

fn assert_same(seed: u64, sga: &Sga, model: &[u8]) {
    assert_eq!(sga.len(), model.len(), "seed {seed}");
    assert!(sga.bytes().eq(model.iter().copied()), "seed {seed}");
    assert!(sga.segments().iter().all(|s| !s.is_empty()), "seed {seed}");
}

#[test]
fn sga_random_steps_agree_with_a_vector_and_copy_nothing() {
    for seed in seeds() {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let memory = Memory::new(MemoryConfig::default()).expect("memory");
        let before = counters::copied_bytes();
        let (mut sga, mut model, mut kept) = (Sga::new(), Vec::new(), Vec::new());
        for _ in 0..steps() {
            sga_step(rng, &memory, &mut sga, &mut model, &mut kept);
            assert_same(seed, &sga, &model);
        }
        for (sga, model) in &kept {
            assert_same(seed, sga, model);
        }
        assert_eq!(counters::copied_bytes(), before, "seed {seed}: a step copied");
        let mut out = vec![0; model.len()];
        assert_eq!(sga.copy_to_slice(&mut out), model.len());
        assert_eq!(out, model, "seed {seed}");
        assert_eq!(counters::copied_bytes() - before, model.len() as u64, "seed {seed}: a copy was not counted");
        drop((sga, kept));
        assert_eq!((memory.stats().buffers_in_use, memory.stats().frames_in_use), (0, 0), "seed {seed}: a leak");
    }
}
