//! A world of hosts in simulated time: each host is a network stack and its programs, all joined by a switch through
//! links that have a rate, a delay and a queue, and that lose, reorder, duplicate and corrupt by seed. One thread, no
//! clock: the same seed gives the same run to the byte.
#![forbid(unsafe_code)]

pub mod campaign;
mod host;
mod link;
pub mod programs;

pub use host::{Host, HostApi, Program, Wire};
pub use link::{Link, Pipe};

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use towpath_inet::random::Rng;
use towpath_inet::{Mac, Nanos};

/// Something with one network interface.
pub trait Node {
    /// Its hardware address.
    fn mac(&self) -> Mac;
    /// A frame arrives.
    fn deliver(&mut self, frame: &[u8], now: Nanos);
    /// When it wants to be polled.
    fn poll_at(&self) -> Option<Nanos>;
    /// Time has come.
    fn poll(&mut self, now: Nanos);
    /// Takes the frames it sent.
    fn take_frames(&mut self) -> Vec<Vec<u8>>;
    /// Frames its device still holds room for.
    fn set_room(&mut self, room: usize);
}

/// A frame on its way, ordered by arrival and then by the order of sending.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Nanos,
    order: u64,
    to: usize,
    /// It has passed the switch and is on the last link.
    down: bool,
    frame: Vec<u8>,
}

struct Place {
    node: Option<Rc<RefCell<dyn Node>>>,
    mac: Mac,
    up: Pipe,
    down: Pipe,
    /// When the device may take frames again.
    wake: Option<Nanos>,
}

/// A look at every frame that passes the switch: time, sender, bytes.
pub type Tap = Box<dyn FnMut(Nanos, usize, &[u8])>;

/// The world.
pub struct World {
    now: Nanos,
    places: Vec<Place>,
    flights: BinaryHeap<Reverse<Flight>>,
    order: u64,
    rng: Rng,
    tap: Option<Tap>,
}

impl World {
    /// An empty world whose chances follow from `seed`.
    pub fn new(seed: u64) -> World {
        World {
            now: Nanos::secs(1),
            places: Vec::new(),
            flights: BinaryHeap::new(),
            order: 0,
            rng: Rng::new(seed),
            tap: None,
        }
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Joins a node to the switch by a link each way; returns its number.
    pub fn join(&mut self, node: Rc<RefCell<dyn Node>>, up: Link, down: Link) -> usize {
        let mac = node.borrow().mac();
        self.places.push(Place { node: Some(node), mac, up: Pipe::new(up), down: Pipe::new(down), wake: None });
        self.places.len() - 1
    }

    /// Looks at every frame.
    pub fn tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
    }

    /// Changes the link towards a node.
    pub fn set_down(&mut self, place: usize, link: Link) {
        self.places[place].down.link = link;
    }

    /// Changes the link from a node.
    pub fn set_up(&mut self, place: usize, link: Link) {
        self.places[place].up.link = link;
    }

    /// The process at `place` dies: its node is gone with everything it held; frames to it fall on the floor.
    pub fn kill(&mut self, place: usize) {
        self.places[place].node = None;
    }

    /// Puts a new node where one died.
    pub fn replace(&mut self, place: usize, node: Rc<RefCell<dyn Node>>) {
        self.places[place].mac = node.borrow().mac();
        self.places[place].node = Some(node);
    }

    /// A frame arrives at the switch as if `from` had sent it.
    pub fn inject(&mut self, from: usize, frame: Vec<u8>) {
        self.switch(from, frame);
    }

    /// Runs until `done` or until `limit` has passed; says whether it was done.
    pub fn run(&mut self, limit: Nanos, mut done: impl FnMut() -> bool) -> bool {
        let end = self.now + limit;
        self.poll_all();
        loop {
            if done() {
                return true;
            }
            let Some(next) = self.next().filter(|t| *t <= end) else {
                self.now = end;
                return done();
            };
            self.now = self.now.max(next);
            self.step();
        }
    }

    fn next(&self) -> Option<Nanos> {
        let flights = self.flights.peek().map(|f| f.0.at);
        let nodes = self.places.iter().filter_map(|p| p.node.as_ref()?.borrow().poll_at());
        let wakes = self.places.iter().filter_map(|p| p.wake);
        flights.into_iter().chain(nodes).chain(wakes).min()
    }

    fn step(&mut self) {
        while self.flights.peek().is_some_and(|f| f.0.at <= self.now) {
            let Some(Reverse(Flight { to, down, frame, .. })) = self.flights.pop() else { break };
            if !down {
                self.switch(to, frame);
            } else if let Some(node) = self.places[to].node.clone() {
                node.borrow_mut().deliver(&frame, self.now);
                self.collect(to);
            }
        }
        self.poll_all();
    }

    fn poll_all(&mut self) {
        for i in 0..self.places.len() {
            let Some(node) = self.places[i].node.clone() else { continue };
            let woken = self.places[i].wake.is_some_and(|at| at <= self.now);
            let due = node.borrow().poll_at().is_some_and(|at| at <= self.now);
            if woken {
                self.places[i].wake = None;
                let room = self.places[i].up.room(self.now);
                node.borrow_mut().set_room(room);
            }
            if due || woken {
                node.borrow_mut().poll(self.now);
                self.collect(i);
            }
        }
    }

    /// Puts the frames a node sent on its link up.
    fn collect(&mut self, from: usize) {
        let Some(node) = self.places[from].node.clone() else { return };
        let frames = node.borrow_mut().take_frames();
        if frames.is_empty() {
            return;
        }
        for frame in frames {
            let pipe = &mut self.places[from].up;
            for (at, frame) in pipe.pass(frame, self.now, &mut self.rng) {
                self.order += 1;
                self.flights.push(Reverse(Flight { at, order: self.order, to: from, down: false, frame }));
            }
        }
        let pipe = &self.places[from].up;
        let room = pipe.room(self.now);
        node.borrow_mut().set_room(room);
        if room == 0 {
            self.places[from].wake = Some(pipe.free_at(self.now));
        }
    }

    fn switch(&mut self, from: usize, frame: Vec<u8>) {
        if let Some(tap) = &mut self.tap {
            tap(self.now, from, &frame);
        }
        let dst = Mac([frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]]);
        for to in 0..self.places.len() {
            if to == from || (!dst.is_group() && self.places[to].mac != dst) {
                continue;
            }
            for (at, frame) in self.places[to].down.pass(frame.clone(), self.now, &mut self.rng) {
                self.order += 1;
                self.flights.push(Reverse(Flight { at, order: self.order, to, down: true, frame }));
            }
        }
    }

    /// Frames lost, by queues and by chance, on the links of a node: up and down.
    pub fn lost(&self, place: usize) -> (u64, u64) {
        (self.places[place].up.lost, self.places[place].down.lost)
    }
}
