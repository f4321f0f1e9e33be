//! `towpath bench heap`: an allocation and its free, in nanoseconds a pair, in four patterns and five sizes, and the
//! memory that stays after everything was freed. Baselines are the allocators of Debian, loaded beside each other
//! and called through function pointers; so is Towpath's own malloc.

use crate::heap_mallocs::{self as mallocs, Malloc};
use crate::report::{Better, Report, Row};
use crate::timing::{Samples, interleave};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use towpath_cbuf::{BufMut, Memory, MemoryConfig, RemoteBuf};

/// Sizes in bytes, and how a person calls them.
const SIZES: [(usize, &str); 5] =
    [(64, "64 B"), (1 << 10, "1 KB"), (4 << 10, "4 KB"), (64 << 10, "64 KB"), (1 << 20, "1 MB")];
/// Objects of a batch.
const BATCH: usize = 64;
/// Objects alive in the random pattern.
const LIVE: usize = 4096;

/// Something that allocates and frees.
trait Allocator {
    type Object;
    fn alloc(&self, len: usize) -> Self::Object;
    fn free(&self, object: Self::Object);
}

/// Heap buffers.
struct Heap<'a>(&'a Memory);
/// CBUFs.
struct Frames<'a>(&'a Memory);

impl Allocator for Heap<'_> {
    type Object = BufMut;
    #[inline(always)]
    fn alloc(&self, len: usize) -> BufMut {
        self.0.alloc(len).expect("memory for a benchmark")
    }
    #[inline(always)]
    fn free(&self, object: BufMut) {
        drop(object);
    }
}

impl Allocator for Frames<'_> {
    type Object = BufMut;
    #[inline(always)]
    fn alloc(&self, len: usize) -> BufMut {
        self.0.alloc_frame(len).expect("frames for a benchmark")
    }
    #[inline(always)]
    fn free(&self, object: BufMut) {
        drop(object);
    }
}

impl Allocator for Malloc {
    type Object = *mut u8;
    #[inline(always)]
    fn alloc(&self, len: usize) -> *mut u8 {
        self.alloc(len)
    }
    #[inline(always)]
    fn free(&self, object: *mut u8) {
        self.free(object);
    }
}

/// The single-threaded patterns.
#[derive(Clone, Copy)]
enum Pattern {
    AtOnce,
    Batch,
    Random,
}

impl Pattern {
    const ALL: [(Pattern, &str); 3] =
        [(Pattern::AtOnce, "at once"), (Pattern::Batch, "batch of 64"), (Pattern::Random, "random of 4096")];
}

/// A generator good enough to pick slots, cheap enough not to show.
struct Dice(u64);

impl Dice {
    #[inline(always)]
    fn slot(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as usize % LIVE
    }
}

/// Nanoseconds a pair over about `pairs` pairs. `live` keeps the random pattern's objects between calls.
fn measure<A: Allocator>(a: &A, pattern: Pattern, len: usize, pairs: usize, live: &mut Vec<A::Object>) -> f64 {
    match pattern {
        Pattern::AtOnce => {
            let start = Instant::now();
            for _ in 0..pairs {
                a.free(black_box(a.alloc(black_box(len))));
            }
            start.elapsed().as_nanos() as f64 / pairs as f64
        }
        Pattern::Batch => {
            let mut held = Vec::with_capacity(BATCH);
            let batches = (pairs / BATCH).max(1);
            let start = Instant::now();
            for _ in 0..batches {
                for _ in 0..BATCH {
                    held.push(a.alloc(black_box(len)));
                }
                black_box(&mut held);
                for object in held.drain(..) {
                    a.free(object);
                }
            }
            start.elapsed().as_nanos() as f64 / (batches * BATCH) as f64
        }
        Pattern::Random => {
            while live.len() < LIVE {
                live.push(a.alloc(len));
            }
            let mut dice = Dice(1);
            let start = Instant::now();
            for _ in 0..pairs {
                let slot = dice.slot();
                let fresh = a.alloc(black_box(len));
                a.free(std::mem::replace(&mut live[slot], fresh));
            }
            start.elapsed().as_nanos() as f64 / pairs as f64
        }
    }
}

/// A row of one pattern and size: ours first.
fn row(report: &mut Report, name: String, samples: Vec<Samples>) {
    report.push(Row::from_samples(&name, "ns/pair", Better::Lower, &samples[0], &samples[1..]));
}

type Named<'a> = (&'a str, Box<dyn FnMut() -> f64 + 'a>);

fn contender<'a, A: Allocator + 'a>(name: &'a str, a: A, pattern: Pattern, len: usize, pairs: usize) -> Named<'a> {
    let mut live = Vec::new();
    (name, Box::new(move || measure(&a, pattern, len, pairs, &mut live)))
}

/// A single-producer ring of pointers between two cores.
struct Ring {
    slots: Vec<AtomicUsize>,
    stop: AtomicBool,
}

impl Ring {
    fn new() -> Ring {
        Ring { slots: (0..256).map(|_| AtomicUsize::new(0)).collect(), stop: AtomicBool::new(false) }
    }

    fn send(&self, i: usize, value: usize) {
        let slot = &self.slots[i % self.slots.len()];
        while slot.load(Ordering::Acquire) != 0 {
            std::hint::spin_loop();
        }
        slot.store(value, Ordering::Release);
    }

    fn receive(&self, i: usize) -> Option<usize> {
        let slot = &self.slots[i % self.slots.len()];
        loop {
            let value = slot.load(Ordering::Acquire);
            if value != 0 {
                slot.store(0, Ordering::Release);
                return Some(value);
            }
            if self.stop.load(Ordering::Acquire) && slot.load(Ordering::Acquire) == 0 {
                return None;
            }
            std::hint::spin_loop();
        }
    }
}

/// Allocates here, frees on the other core.
fn across(pairs: usize, produce: impl Fn() -> usize, consume: impl Fn(usize) + Sync) -> f64 {
    let ring = Ring::new();
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let _ = crate::timing::pin(1);
            let mut i = 0;
            while let Some(value) = ring.receive(i) {
                consume(value);
                i += 1;
            }
        });
        let start = Instant::now();
        for i in 0..pairs {
            ring.send(i, produce());
        }
        ring.stop.store(true, Ordering::Release);
        consumer.join().expect("the consumer");
        start.elapsed().as_nanos() as f64 / pairs as f64
    })
}

fn across_malloc(malloc: Malloc, len: usize, pairs: usize) -> f64 {
    across(pairs, || malloc.alloc(len) as usize, |value| malloc.free(value as *mut u8))
}

fn across_buffers(memory: &Memory, alloc: impl Fn() -> BufMut, pairs: usize) -> f64 {
    let produce = || Box::into_raw(Box::new(alloc().freeze().into_remote())) as usize;
    // SAFETY: each value is the box made by `produce`, taken back once.
    let value = across(pairs, produce, |value| drop(unsafe { Box::from_raw(value as *mut RemoteBuf) }));
    memory.drain_remote();
    value
}

/// Runs the benchmark.
pub fn bench(smoke: bool) -> Result<Report, String> {
    mallocs::make_room()?;
    let mut report = Report::new("heap");
    let (rounds, pairs) = if smoke { (2, 256) } else { (11, 200_000) };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let pinned = crate::timing::pin(0);
    let memory =
        Memory::new(MemoryConfig { frame_bytes: 512 << 20, ..MemoryConfig::default() }).map_err(|e| e.to_string())?;
    let mut others = Vec::new();
    for wanted in mallocs::WANTED {
        match wanted.load() {
            Ok(malloc) => others.push(malloc),
            Err(why) => report.skip(wanted.name, why),
        }
    }
    let ours = mallocs::towpath();
    if let Err(why) = &ours {
        report.skip("towpath malloc", why.clone());
    }
    // First, while this process has used none of them.
    bench_resident(&mut report, &others, ours.as_ref().ok(), smoke);
    for (len, size) in SIZES {
        for (pattern, how) in Pattern::ALL {
            // Less work where a pair is a system call for some.
            let pairs = if len >= 1 << 20 {
                pairs / 20
            } else if len >= 64 << 10 {
                pairs / 4
            } else {
                pairs
            };
            let mut rows: Vec<(String, Named)> = Vec::new();
            if (4 << 10..=64 << 10).contains(&len) {
                let name = if len == 4 << 10 { "CBUF page".to_string() } else { format!("CBUF {size}") };
                rows.push((format!("{name}, {how}"), contender("CBUF", Frames(&memory), pattern, len, pairs)));
            }
            rows.push((format!("heap {size}, {how}"), contender("heap", Heap(&memory), pattern, len, pairs)));
            if let Ok(malloc) = &ours {
                rows.push((format!("malloc {size}, {how}"), contender("malloc", *malloc, pattern, len, pairs)));
            }
            let own = rows.len();
            let mut all: Vec<Named> = Vec::new();
            let mut names = Vec::new();
            for (name, c) in rows {
                names.push(name);
                all.push(c);
            }
            for malloc in &others {
                all.push(contender(malloc.name, *malloc, pattern, len, pairs));
            }
            let samples = interleave(rounds, &mut all);
            drop(all);
            push_rows(&mut report, names, own, &samples);
        }
    }
    if cores < 2 {
        report.skip("producer to consumer", "one core only");
    } else {
        bench_across(&mut report, &memory, &others, ours.as_ref().ok(), rounds, pairs / 2);
    }
    if let Err(why) = pinned {
        report.skip("pinning", why);
    }
    report.say(
        "A pair is one allocation and its free; those of Towpath's malloc include the checks for double, foreign, \
         stale and interior frees. The two-core rows vary with what else the machine runs.",
    );
    Ok(report)
}

/// One row for each of ours, all with the same baselines.
fn push_rows(report: &mut Report, names: Vec<String>, own: usize, samples: &[Samples]) {
    for (i, name) in names.into_iter().enumerate() {
        let copy = |s: &Samples| Samples { name: s.name.clone(), values: s.values.clone() };
        let mut those = vec![copy(&samples[i])];
        those.extend(samples[own..].iter().map(copy));
        row(report, name, those);
    }
}

fn bench_across(
    report: &mut Report,
    memory: &Memory,
    others: &[Malloc],
    ours: Option<&Malloc>,
    rounds: usize,
    pairs: usize,
) {
    for (len, size) in SIZES {
        let pairs = if len >= 1 << 20 { pairs / 20 } else { pairs };
        let mut names = Vec::new();
        let mut all: Vec<Named> = Vec::new();
        if len == 4 << 10 {
            names.push("CBUF page, producer to consumer".to_string());
            let alloc = || memory.alloc_frame(len).expect("frames for a benchmark");
            all.push(("CBUF", Box::new(move || across_buffers(memory, alloc, pairs))));
        }
        names.push(format!("heap {size}, producer to consumer"));
        let alloc = move || memory.alloc(len).expect("memory for a benchmark");
        all.push(("heap", Box::new(move || across_buffers(memory, alloc, pairs))));
        if let Some(malloc) = ours {
            names.push(format!("malloc {size}, producer to consumer"));
            all.push(("malloc", Box::new(move || across_malloc(*malloc, len, pairs))));
        }
        let own = names.len();
        for malloc in others {
            all.push((malloc.name, Box::new(move || across_malloc(*malloc, len, pairs))));
        }
        let samples = interleave(rounds, &mut all);
        drop(all);
        push_rows(report, names, own, &samples);
    }
}

/// Resident memory, in MB above the start, after objects of all sizes were written and freed: each allocator in a
/// process of its own, which allocates a little more after 300 ms, as a program that lives on does.
fn bench_resident(report: &mut Report, others: &[Malloc], ours: Option<&Malloc>, smoke: bool) {
    let Some(ours) = ours else { return };
    let one = |malloc: &Malloc| Samples {
        name: malloc.name.to_string(),
        values: (0..if smoke { 1 } else { 3 }).filter_map(|_| mallocs::resident_after_free(malloc, smoke)).collect(),
    };
    let mine = one(ours);
    let rest: Vec<Samples> = others.iter().map(one).collect();
    report.push(Row::from_samples("resident after free", "MB", Better::Lower, &mine, &rest));
}
