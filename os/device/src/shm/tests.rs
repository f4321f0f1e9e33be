//! A peer that lies about every word it can write, and the credit that keeps an honest one supplied.

use super::descriptor::{Descriptor, Piece, WORDS};
use super::handshake::{Channel, Hello, News, pair};
use super::region::{Own, Shape};
use super::{ShmConfig, ShmDevice};
use crate::{Error, PacketDevice, RxPacket, TxPacket, sys};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use towpath_cbuf::{Buf, Memory, MemoryConfig};

const SHAPE: Shape = Shape { slots: 16, tokens: 16 };
const CONFIG: ShmConfig =
    ShmConfig { slots: 16, tokens: 16, credit: 4, mtu: 9000, mac: None, timeout: std::time::Duration::from_secs(5) };
const ARENA_LEN: usize = 64 * 1024;

fn memory() -> Memory {
    Memory::new(MemoryConfig { frame_bytes: 4 << 20, ..MemoryConfig::default() }).unwrap()
}

/// The other end of a device, played by hand.
struct Liar {
    channel: Channel,
    own: Own,
    _arena: OwnedFd,
}

fn liar_with(hello: Hello, own: Own) -> (Liar, Result<ShmDevice, Error>) {
    let (one, two) = pair().unwrap();
    let channel = Channel::new(one);
    channel.send_hello(&hello, own.file()).unwrap();
    let arena = sys::memory_file(c"liar", ARENA_LEN).unwrap();
    sys::seal(arena.as_raw_fd()).unwrap();
    let device = ShmDevice::over(two, false, &memory(), CONFIG);
    assert!(matches!(channel.next(false), Ok(News::Hello(..))));
    (Liar { channel, own, _arena: arena }, device)
}

fn liar() -> (Liar, ShmDevice) {
    let hello = Hello { shape: SHAPE, mac: [2; 6], mtu: 9000, needs_fence: false };
    let (liar, device) = liar_with(hello, Own::create(SHAPE).unwrap());
    liar.channel.send_arena(liar._arena.as_raw_fd()).unwrap();
    (liar, device.unwrap())
}

impl Liar {
    fn send(&mut self, token: u16, pieces: &[Piece]) {
        let mut descriptor = Descriptor::new();
        descriptor.token = token;
        pieces.iter().for_each(|piece| descriptor.push_piece(*piece));
        let mut words = [0; WORDS];
        let used = descriptor.encode(self.own.lap(), &mut words);
        self.own.push(&words, used);
    }
}

fn receive(device: &mut ShmDevice) -> Result<Vec<RxPacket>, Error> {
    let mut out = Vec::new();
    device.receive(&mut out, 16).map(|_| out)
}

/// The lie ends the link at this call or the next, and for ever.
fn assert_ended(device: &mut ShmDevice) {
    let _ = receive(device);
    for _ in 0..3 {
        assert!(matches!(receive(device), Err(Error::Protocol(_))));
    }
    let mut queue = VecDeque::from([TxPacket::plain(Buf::from_static(&[0; 60]))]);
    assert!(matches!(device.transmit(&mut queue), Err(Error::Protocol(_))));
    assert!(queue.is_empty(), "what waits for a dead link is dropped");
}

#[test]
fn honest_piece_by_hand_arrives() {
    let (mut liar, mut device) = liar();
    liar.send(3, &[Piece { arena: 0, len: 100, offset: (ARENA_LEN - 100) as u64 }]);
    assert_eq!(receive(&mut device).unwrap()[0].frame.len(), 100);
}

#[test]
fn piece_outside_its_arena_ends_the_link() {
    for piece in [
        Piece { arena: 0, len: 101, offset: (ARENA_LEN - 100) as u64 },
        Piece { arena: 0, len: 100, offset: u64::MAX - 50 },
        Piece { arena: 0, len: 100, offset: 1 << 40 },
        Piece { arena: 1, len: 100, offset: 0 },
        Piece { arena: u32::MAX, len: 100, offset: 0 },
    ] {
        let (mut liar, mut device) = liar();
        liar.send(0, &[piece]);
        assert_ended(&mut device);
    }
}

#[test]
fn frame_sent_again_while_it_is_held_ends_the_link() {
    let (mut liar, mut device) = liar();
    let piece = Piece { arena: 0, len: 100, offset: 0 };
    liar.send(5, &[piece]);
    let held = receive(&mut device).unwrap();
    liar.send(5, &[piece]);
    assert_ended(&mut device);
    assert_eq!(held[0].frame.len(), 100);
}

#[test]
fn token_beyond_the_agreed_number_ends_the_link() {
    let (mut liar, mut device) = liar();
    liar.send(16, &[Piece { arena: 0, len: 100, offset: 0 }]);
    assert_ended(&mut device);
}

#[test]
fn frame_returned_that_was_never_sent_ends_the_link() {
    let (mut liar, mut device) = liar();
    liar.own.complete(7);
    device.reclaim();
    assert_ended(&mut device);
}

#[test]
fn senseless_hello_is_refused() {
    let good = Hello { shape: SHAPE, mac: [2; 6], mtu: 9000, needs_fence: false };
    for hello in [
        Hello { shape: Shape { slots: 3, tokens: 16 }, ..good },
        Hello { shape: Shape { slots: 16, tokens: 1 << 20 }, ..good },
        Hello { shape: Shape { slots: 16_384, tokens: 16 }, ..good },
        Hello { mtu: 0, ..good },
    ] {
        let (_liar, device) = liar_with(hello, Own::create(SHAPE).unwrap());
        assert!(matches!(device, Err(Error::Protocol(_))), "{hello:?}");
    }
}

#[test]
fn arena_that_could_shrink_ends_the_link() {
    let (liar, mut device) = liar();
    let loose = sys::memory_file(c"loose", 4096).unwrap();
    liar.channel.send_arena(loose.as_raw_fd()).unwrap();
    device.read_news();
    assert_ended(&mut device);
}

#[test]
fn endless_arenas_end_the_link() {
    let (liar, mut device) = liar();
    for _ in 0..70 {
        let _ = liar.channel.send_arena(liar._arena.as_raw_fd());
        device.read_news();
    }
    assert_ended(&mut device);
}

#[test]
fn consumed_count_that_lies_never_opens_more_room_than_there_is() {
    let (liar, mut device) = liar();
    for lie in [u32::MAX, 1 << 31, 17, 0] {
        liar.own.publish_consumed(lie);
        let mut queue: VecDeque<_> = (0..40).map(|_| TxPacket::plain(Buf::from_static(&[0; 60]))).collect();
        device.transmit(&mut queue).unwrap();
        assert!(device.own.sent() <= 16 + 17, "{} frames in 16 slots", device.own.sent());
    }
}

#[test]
fn random_words_in_every_place_never_panic_and_deliver_only_what_was_shared() {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 16 ^ state << 40
    };
    for _ in 0..3000 {
        let (mut liar, mut device) = liar();
        let mut held = Vec::new();
        for _ in 0..40 {
            let mut words = [0; WORDS];
            for word in &mut words {
                // Small numbers come close to sense more often than large ones.
                *word = random() >> (random() % 64);
            }
            words[0] = u64::from(liar.own.lap()) << 32 | words[0] & 0xffff_ffff;
            liar.own.push(&words, WORDS);
            if random() % 4 == 0 {
                liar.own.complete(random() as u16 & 31);
            }
            liar.own.publish_consumed(random() as u32);
            device.reclaim();
            match receive(&mut device) {
                Ok(frames) => held.extend(frames),
                Err(Error::Protocol(_)) => break,
                Err(other) => panic!("{other}"),
            }
        }
        let bytes: usize = held
            .iter()
            .flat_map(|p| p.frame.segments())
            .map(|s| s.iter().map(|b| usize::from(*b > 0)).sum::<usize>())
            .sum();
        assert!(bytes < 10_000_000);
    }
}

#[test]
fn receiver_past_its_credit_copies_and_gives_back() {
    let (near, far) = (memory(), memory());
    let (mut a, mut b) = ShmDevice::pair([&near, &far], CONFIG).unwrap();
    let mut held = Vec::new();
    for n in 0..200_usize {
        let mut frame = near.alloc_frame(1000).unwrap();
        frame.fill(n as u8);
        let mut queue = VecDeque::from([TxPacket::plain(frame.freeze())]);
        while !queue.is_empty() {
            a.transmit(&mut queue).unwrap();
            let mut out = Vec::new();
            b.receive(&mut out, 16).unwrap();
            held.extend(out);
            // Sleep tells the peer what was returned.
            b.prepare_sleep();
            b.wake();
        }
    }
    let mut out = Vec::new();
    b.receive(&mut out, 16).unwrap();
    held.extend(out);
    assert_eq!(held.len(), 200);
    for (n, packet) in held.iter().enumerate() {
        assert!(packet.frame.segments()[0].iter().all(|byte| *byte == n as u8));
    }
    a.reclaim();
    assert_eq!(a.in_flight(), 4, "the receiver keeps no more than its credit");
    drop(held);
    b.prepare_sleep();
    a.reclaim();
    assert_eq!(a.in_flight(), 0);
}

#[test]
fn frames_in_the_hands_of_a_living_peer_are_never_issued_again() {
    let (near, far) = (memory(), memory());
    let (mut a, mut b) = ShmDevice::pair([&near, &far], CONFIG).unwrap();
    let mut frame = near.alloc_frame(1000).unwrap();
    frame.fill(9);
    a.transmit(&mut VecDeque::from([TxPacket::plain(frame.freeze())])).unwrap();
    let held = receive(&mut b).unwrap();
    drop(a);
    for _ in 0..100 {
        if let Ok(mut other) = near.alloc_frame(1000) {
            other.fill(1);
        }
    }
    assert!(held[0].frame.segments()[0].iter().all(|byte| *byte == 9));
    let ended = (0..5000).find_map(|_| receive(&mut b).err());
    assert!(matches!(ended, Some(Error::PeerGone)), "{ended:?}");
}
