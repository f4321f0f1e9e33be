//! Golden tables: throughput against loss and delay for each congestion controller, shares of competing flows, and the
//! time to repair a loss, all in simulated time. The tables are files; `TOWPATH_BLESS=1` writes them anew, and the
//! difference is reviewed like code.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use towpath_inet::tcp::congestion::Algorithm;
use towpath_inet::{Config, Nanos};
use towpath_world::programs::{Receiver, Sender, Shared};
use towpath_world::{Host, Link, World};

const ALGORITHMS: [(&str, Algorithm); 2] = [("cubic", Algorithm::Cubic), ("reno", Algorithm::Reno)];

fn compare(name: &str, table: &str) {
    let path = format!("{}/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TOWPATH_BLESS").is_some() {
        std::fs::write(&path, table).expect("the folder can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(table, kept, "{name} changed: run with TOWPATH_BLESS=1 and review the difference");
}

fn config(n: u8, algorithm: Algorithm) -> Config {
    let mut config = Host::config(n);
    config.tcp.congestion = algorithm;
    config
}

/// Megabits a second that one flow gets through a link of 100 Mbit/s in 8 seconds.
fn throughput(algorithm: Algorithm, loss: f64, delay: Nanos, seed: u64) -> f64 {
    let (sender, _) = Sender::new("10.0.0.2:7", 1 << 40, 1 << 20);
    let (receiver, got) = Receiver::new(7);
    let mut world = World::new(seed);
    let a = Host::new(&config(1, algorithm), vec![Box::new(sender)]);
    let b = Host::new(&config(2, algorithm), vec![Box::new(receiver)]);
    // A queue of one bandwidth-delay product, as routers are advised to have, and at least 64 packets.
    let queue = (2 * delay.0 as usize / 80).max(64 * 1500);
    let quick = Link::delay(Nanos::ZERO);
    world.join(Rc::new(RefCell::new(a)), quick, Link::delay(delay));
    world.join(Rc::new(RefCell::new(b)), quick, Link { loss, ..Link::rate(100, delay, queue) });
    world.run(Nanos::secs(8), || false);
    assert!(!got.borrow().wrong);
    got.borrow().received as f64 * 8.0 / 8e6
}

#[test]
fn throughput_against_loss_and_delay_is_as_recorded() {
    let mut table = String::from("Mbit/s of one flow over 100 Mbit/s, 8 s\n");
    for (name, algorithm) in ALGORITHMS {
        for ms in [1, 10, 50] {
            write!(table, "{name:<6} rtt {:>3} ms:", 2 * ms).unwrap();
            for loss in [0.0, 0.0001, 0.001, 0.01, 0.05] {
                let rate = throughput(algorithm, loss, Nanos::millis(ms), 1);
                write!(table, "  {:>5}% {rate:>6.1}", loss * 100.0).unwrap();
            }
            table.push('\n');
        }
    }
    compare("throughput", &table);
}

/// Flows that share one link to a server; when each starts, in seconds.
fn share(algorithm: Algorithm, starts: &[u64], seconds: u64) -> Vec<f64> {
    let mut world = World::new(5);
    let quick = Link::delay(Nanos::ZERO);
    let mut reports: Vec<Shared> = Vec::new();
    let mut receivers: Vec<Box<dyn towpath_world::Program>> = Vec::new();
    let mut hosts = Vec::new();
    for (i, start) in starts.iter().enumerate() {
        let port = 7 + i as u16;
        let (mut sender, _) = Sender::new(&format!("10.0.0.100:{port}"), 1 << 40, 1 << 20);
        sender.start_at = Nanos::secs(1 + start);
        let (receiver, got) = Receiver::new(port);
        reports.push(got);
        receivers.push(Box::new(receiver));
        hosts.push(Host::new(&config(1 + i as u8, algorithm), vec![Box::new(sender)]));
    }
    let server = Host::new(&config(100, algorithm), receivers);
    world.join(Rc::new(RefCell::new(server)), quick, Link::rate(50, Nanos::millis(10), 150_000));
    for host in hosts {
        world.join(Rc::new(RefCell::new(host)), quick, Link::delay(Nanos::millis(10)));
    }
    let from = starts.iter().max().copied().unwrap_or(0) + seconds / 3;
    world.run(Nanos::secs(from), || false);
    let before: Vec<u64> = reports.iter().map(|r| r.borrow().received).collect();
    world.run(Nanos::secs(seconds), || false);
    let after = reports.iter().map(|r| r.borrow().received);
    after.zip(before).map(|(a, b)| (a - b) as f64 * 8.0 / seconds as f64 / 1e6).collect()
}

#[test]
fn shares_of_competing_flows_are_as_recorded_and_fair() {
    let mut table = String::from("Mbit/s of each flow over one link of 50 Mbit/s, 15 s after all have started\n");
    for (name, algorithm) in ALGORITHMS {
        for starts in [&[0, 0][..], &[0, 5], &[0, 1, 2, 3]] {
            let shares = share(algorithm, starts, 15);
            let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
            let index = sum * sum / squares / shares.len() as f64;
            writeln!(table, "{name:<6} starting at {starts:?}: {shares:.1?} sum {sum:.1} Jain's index {index:.2}")
                .unwrap();
            assert!(index > 0.7, "unfair: {shares:?}");
            assert!(sum > 40.0, "the link is not used: {shares:?}");
        }
    }
    compare("fairness", &table);
}

/// Milliseconds a transfer of 3 MB takes when the link is cut for `gap` in its middle, and without the cut.
fn recovery(gap: Nanos, rtt: Nanos) -> (f64, f64) {
    let run = |gap: Nanos| {
        let (sender, _) = Sender::new("10.0.0.2:7", 3_000_000, 1 << 20);
        let (receiver, got) = Receiver::new(7);
        let mut world = World::new(1);
        let a = Host::new(&config(1, Algorithm::Cubic), vec![Box::new(sender)]);
        let b = Host::new(&config(2, Algorithm::Cubic), vec![Box::new(receiver)]);
        let quick = Link::delay(Nanos::ZERO);
        let way = Nanos(rtt.0 / 2);
        let whole = Link::rate(50, way, 400_000);
        world.join(Rc::new(RefCell::new(a)), quick, Link::delay(way));
        let at = world.join(Rc::new(RefCell::new(b)), quick, whole);
        let half = got.clone();
        assert!(world.run(Nanos::secs(60), move || half.borrow().received > 1_500_000));
        if gap > Nanos::ZERO {
            world.set_down(at, Link { loss: 1.0, ..whole });
            world.run(gap, || false);
            world.set_down(at, whole);
        }
        let done = got.clone();
        assert!(world.run(Nanos::secs(60), move || done.borrow().ended == 1));
        assert!(!got.borrow().wrong);
        got.borrow().last.since(Nanos::secs(1)).as_secs_f64() * 1e3
    };
    (run(gap), run(Nanos::ZERO))
}

#[test]
fn time_to_recover_from_a_cut_is_as_recorded() {
    let mut table =
        String::from("ms that a cut of the link costs a transfer of 3 MB over 50 Mbit/s beyond the cut itself\n");
    for rtt in [4, 40] {
        for gap in [1, 10, 100, 1000] {
            let (with, without) = recovery(Nanos::millis(gap), Nanos::millis(rtt));
            let cost = with - without - gap as f64;
            writeln!(table, "rtt {rtt:>2} ms, cut for {gap:>4} ms: {cost:>7.1}").unwrap();
            assert!(cost < 2.0 * gap as f64 + 1000.0, "a cut of {gap} ms cost {cost} ms");
        }
    }
    compare("recovery", &table);
}
