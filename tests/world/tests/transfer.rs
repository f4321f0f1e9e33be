//! Streams between two hosts: every byte arrives once and in order, whatever the link does, and nothing is kept.

use std::cell::RefCell;
use std::rc::Rc;
use towpath_inet::{Config, Nanos};
use towpath_world::programs::{Receiver, Report, Sender};
use towpath_world::{Host, Link, World};

struct Outcome {
    sent: Report,
    got: Report,
    sender: Rc<RefCell<Host>>,
    receiver: Rc<RefCell<Host>>,
    now: Nanos,
}

struct Case {
    to: &'static str,
    bytes: u64,
    push: usize,
    up: Link,
    down: Link,
    seed: u64,
    limit: Nanos,
    tune: fn(&mut Config),
}

const CASE: Case = Case {
    to: "10.0.0.2:7",
    bytes: 100_000,
    push: 10_000,
    up: Link::delay(Nanos::micros(50)),
    down: Link::delay(Nanos::micros(50)),
    seed: 1,
    limit: Nanos::secs(60),
    tune: |_| {},
};

fn transfer(case: Case) -> Outcome {
    let mut world = World::new(case.seed);
    let (sender, sent) = Sender::new(case.to, case.bytes, case.push);
    let (receiver, got) = Receiver::new(7);
    let (mut a, mut b) = (Host::config(1), Host::config(2));
    (case.tune)(&mut a);
    (case.tune)(&mut b);
    let a = Rc::new(RefCell::new(Host::new(&a, vec![Box::new(sender)])));
    let b = Rc::new(RefCell::new(Host::new(&b, vec![Box::new(receiver)])));
    world.join(a.clone(), case.up, Link::delay(Nanos::ZERO));
    world.join(b.clone(), Link::delay(Nanos::ZERO), case.down);
    let (s, g) = (sent.clone(), got.clone());
    let bytes = case.bytes;
    let done = world.run(case.limit, move || g.borrow().ended == 1 && s.borrow().ended == 1);
    let stats = (a.borrow().stack.stats(), b.borrow().stack.stats());
    assert!(done, "not done by {:?}: sent {:?} got {:?} {stats:#?}", world.now(), sent.borrow(), got.borrow());
    let now = world.now();
    // Long after, TIME-WAIT included, nothing is left.
    world.run(Nanos::secs(130), || false);
    for host in [&a, &b] {
        let host = host.borrow();
        assert_eq!(host.stack.tcp_census().0, 0, "a connection is left");
        assert_eq!(host.memory.stats().buffers_in_use, 0, "a buffer is left");
    }
    assert!(!got.borrow().wrong, "wrong bytes");
    assert_eq!(got.borrow().received, bytes);
    assert!(got.borrow().errors.is_empty() && sent.borrow().errors.is_empty());
    let (sent, got) = (sent.borrow().clone(), got.borrow().clone());
    Outcome { sent, got, sender: a, receiver: b, now }
}

#[test]
fn stream_over_a_clean_link_arrives_whole_and_leaves_nothing() {
    let out = transfer(CASE);
    assert_eq!((out.sent.connected, out.got.connected), (1, 1));
    assert_eq!(out.sender.borrow().stack.stats().retransmits, 0);
    assert!(out.now < Nanos::millis(1100), "{:?}", out.now);
}

#[test]
fn stream_over_ipv6_arrives_whole() {
    transfer(Case { to: "[fd00::2]:7", ..CASE });
}

#[test]
fn stream_over_vlan_arrives_whole() {
    transfer(Case { tune: |c| c.vlan = Some(7), ..CASE });
}

#[test]
fn stream_with_device_offloads_arrives_whole() {
    for to in ["10.0.0.2:7", "[fd00::2]:7"] {
        transfer(Case {
            to,
            bytes: 5_000_000,
            push: 300_000,
            tune: |c| {
                c.offload.checksum = true;
                c.offload.segment_bytes = 60_000;
            },
            ..CASE
        });
    }
}

#[test]
fn stream_of_tiny_pushes_arrives_whole() {
    transfer(Case { bytes: 3000, push: 1, ..CASE });
}

#[test]
fn stream_over_a_lossy_link_arrives_whole_for_many_seeds() {
    for seed in 0..10 {
        for loss in [0.001, 0.01, 0.05, 0.2] {
            let link = Link { loss, ..Link::delay(Nanos::millis(5)) };
            transfer(Case { bytes: 300_000, up: link, down: link, seed, limit: Nanos::secs(2000), ..CASE });
        }
    }
}

#[test]
fn stream_over_a_hostile_link_arrives_whole_for_many_seeds() {
    for seed in 0..10 {
        let link = Link {
            loss: 0.02,
            reorder: 0.2,
            reorder_by: Nanos::millis(8),
            duplicate: 0.05,
            corrupt: 0.03,
            ..Link::delay(Nanos::millis(2))
        };
        let out = transfer(Case { bytes: 300_000, up: link, down: link, seed, limit: Nanos::secs(2000), ..CASE });
        assert!(out.receiver.borrow().stack.stats().malformed > 0, "corruption must have been caught");
    }
}

#[test]
fn stream_without_timestamps_sack_and_scaling_survives_loss() {
    for seed in 0..10 {
        let link = Link { loss: 0.02, ..Link::delay(Nanos::millis(5)) };
        let tune = |c: &mut Config| (c.tcp.timestamps, c.tcp.sack, c.tcp.scaling) = (false, false, false);
        transfer(Case { bytes: 300_000, up: link, down: link, seed, limit: Nanos::secs(2000), tune, ..CASE });
    }
}

#[test]
fn stream_through_a_bottleneck_fills_it() {
    let link = Link::rate(100, Nanos::millis(20), 500_000);
    let out = transfer(Case { bytes: 50_000_000, push: 1 << 20, down: link, ..CASE });
    let seconds = out.got.last.since(Nanos::secs(1)).as_secs_f64();
    let megabits = 50.0 * 8.0 / seconds;
    assert!(megabits > 80.0, "{megabits} Mbit/s");
}
