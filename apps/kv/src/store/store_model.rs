//! The store beside a plain ordered map, step by step; a failure prints the seed.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Debug)]
struct Plain {
    value: Vec<u8>,
    expires: Option<u64>,
}

type Model = BTreeMap<(usize, Vec<u8>), Plain>;

fn key(rng: &mut SmallRng) -> Vec<u8> {
    let n = rng.random_range(0..60);
    if n % 7 == 0 {
        format!("a key too long to lie in its entry {n}").into_bytes()
    } else {
        format!("k{n}").into_bytes()
    }
}

fn value(rng: &mut SmallRng) -> Value {
    match rng.random_range(0..3) {
        0 => Value::Int(rng.random_range(-100..100)),
        1 => Value::Packed(vec![b'x'; rng.random_range(0..100)].into()),
        _ => Value::Raw(vec![b'y'; rng.random_range(0..3000)]),
    }
}

fn step(store: &mut Store, model: &mut Model, rng: &mut SmallRng, seed: u64) {
    let db = rng.random_range(0..3);
    let key = key(rng);
    let at = (db, key.clone());
    match rng.random_range(0..100) {
        0..40 => {
            let value = value(rng);
            let expiry = match rng.random_range(0..4) {
                0 => Expiry::At(store.now + rng.random_range(1..50)),
                1 => Expiry::Keep,
                _ => Expiry::Never,
            };
            let kept = model.get(&at).and_then(|p| p.expires);
            let expires = match expiry {
                Expiry::At(when) => Some(when),
                Expiry::Keep => kept,
                Expiry::Never => None,
            };
            model.insert(at, Plain { value: value.bytes().into_owned(), expires });
            store.set(db, &key, value, expiry);
        }
        40..60 => assert_eq!(store.remove(db, &key), model.remove(&at).is_some(), "SEED={seed}"),
        60..70 => {
            let when = rng.random_bool(0.5).then(|| store.now + rng.random_range(1..50));
            let there = store.end(db, &key, when);
            assert_eq!(there, model.contains_key(&at), "SEED={seed}");
            if let Some(plain) = model.get_mut(&at) {
                plain.expires = when;
            }
        }
        70..80 => {
            let got = store.update(db, &key, |v| v.make_raw().extend_from_slice(b"tail"));
            assert_eq!(got.is_some(), model.contains_key(&at), "SEED={seed}");
            if let Some(plain) = model.get_mut(&at) {
                plain.value.extend_from_slice(b"tail");
            }
        }
        80..90 => {
            store.now += rng.random_range(0..10);
            model.retain(|_, p| p.expires.is_none_or(|when| when > store.now));
        }
        90..92 => {
            store.flush(db);
            model.retain(|(d, _), _| *d != db);
        }
        92..94 => {
            let other = rng.random_range(0..3);
            store.swap(db, other);
            let swapped = |d: usize| {
                if d == db {
                    other
                } else if d == other {
                    db
                } else {
                    d
                }
            };
            *model = std::mem::take(model).into_iter().map(|((d, k), p)| ((swapped(d), k), p)).collect();
        }
        _ => {
            store.expire_due(usize::MAX);
        }
    }
    let got = store.read(db, &key).map(|e| Plain { value: e.value.bytes().into_owned(), expires: e.expires() });
    assert_eq!(got.as_ref(), model.get(&(db, key)), "SEED={seed}");
}

/// Everything in the store, by walking it.
fn whole(store: &Store) -> Model {
    let mut all = Model::new();
    for db in 0..DATABASES {
        let mut slot = 0;
        while let Some((at, entry)) = store.next_from(db, slot) {
            let plain = Plain { value: entry.value.bytes().into_owned(), expires: entry.expires() };
            assert!(all.insert((db, entry.key.as_bytes().to_vec()), plain).is_none(), "a key was met twice");
            slot = at + 1;
        }
    }
    all
}

#[test]
fn store_beside_an_ordered_map_agrees_at_every_step() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut store, mut model) = (Store::new(seed), Model::new());
        store.now = 1000;
        for _ in 0..1500 {
            step(&mut store, &mut model, &mut rng, seed);
        }
        assert_eq!(whole(&store), model, "SEED={seed}");
        for db in 0..DATABASES {
            store.flush(db);
        }
        assert_eq!(store.used(), 0, "memory is accounted for to the byte, SEED={seed}");
    }
}

#[test]
fn snapshot_taken_in_steps_is_the_data_of_one_moment() {
    for seed in 100..130 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut store, mut model) = (Store::new(seed), Model::new());
        store.now = 1000;
        for _ in 0..400 {
            step(&mut store, &mut model, &mut rng, seed);
        }
        let wanted = model.clone();
        store.expire_due(usize::MAX);
        store.snapshot_begin();
        let mut got = Model::new();
        loop {
            let items = store.snapshot_next(rng.random_range(1..9));
            if items.is_empty() {
                break;
            }
            for item in items {
                let plain = Plain { value: item.value.bytes().into_owned(), expires: item.expires };
                let twice = got.insert((item.db, item.key.as_bytes().to_vec()), plain);
                assert!(twice.is_none(), "a key was met twice, SEED={seed}");
            }
            for _ in 0..rng.random_range(0..12) {
                step(&mut store, &mut model, &mut rng, seed);
            }
        }
        assert_eq!(got, wanted, "SEED={seed}");
        assert_eq!(whole(&store), model, "SEED={seed}");
    }
}

#[test]
fn scan_by_slots_sees_every_key_that_stays() {
    let mut store = Store::new(7);
    for i in 0..3000 {
        store.set(0, format!("stay{i}").as_bytes(), Value::Int(i), Expiry::Never);
    }
    let (mut slot, mut seen, mut round) = (0, std::collections::BTreeSet::new(), 0);
    while let Some((at, entry)) = store.next_from(0, slot) {
        seen.insert(entry.key.as_bytes().to_vec());
        slot = at + 1;
        // The table grows and shrinks while it is scanned.
        store.set(0, format!("come{round}").as_bytes(), Value::Int(0), Expiry::Never);
        store.remove(0, format!("come{}", round / 2).as_bytes());
        round += 1;
        if round > 20_000 {
            break;
        }
    }
    assert!((0..3000).all(|i| seen.contains(format!("stay{i}").as_bytes())));
}

#[test]
fn eviction_brings_the_data_below_the_limit_and_prefers_the_unused() {
    let mut store = Store::new(3);
    for i in 0..2000u64 {
        store.now = 1_000_000 + i * 100;
        store.set(0, format!("k{i}").as_bytes(), Value::Packed(vec![0; 100].into()), Expiry::Never);
    }
    let limit = store.used() / 2;
    assert!(store.make_room(limit, Policy::AllkeysLru));
    assert!(store.used() <= limit);
    assert_eq!(store.gone.len() as u64, store.counts.evicted);
    let survivors = |range: std::ops::Range<u64>, store: &mut Store| {
        range.filter(|i| store.contains(0, format!("k{i}").as_bytes())).count()
    };
    let (old, new) = (survivors(0..500, &mut store), survivors(1500..2000, &mut store));
    assert!(new > 2 * old, "of the 500 newest {new} survive, of the 500 oldest {old}");
    assert!(!store.make_room(0, Policy::NoEviction));
    assert!(!store.make_room(0, Policy::VolatileLru), "nothing expires, so nothing may go");
    assert!(store.make_room(0, Policy::AllkeysRandom));
    assert_eq!((store.used(), store.len(0)), (0, 0));
}
