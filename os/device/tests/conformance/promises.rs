//! The promises, one function each.

use crate::pairs::{End, Pair};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_cbuf::{Buf, Memory, Sga};
use towpath_device::{PacketDevice, RxChecksum, RxPacket, TxChecksum, TxOffload, TxPacket, poll_readable};

/// An Ethernet type for local experiments (IEEE 802): the kernel's own frames have others and are ignored.
const TYPE: [u8; 2] = [0x88, 0xb5];
const PATIENCE: Duration = Duration::from_secs(5);

/// The bytes of frame `n`, `len` bytes long.
fn bytes(n: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0xff; 6];
    out.extend([2, 0, 0, 0, 0, 9]);
    out.extend(TYPE);
    out.extend((out.len()..len).map(|i| (i * 7 + n * 13) as u8));
    out.truncate(len);
    out
}

fn copied(memory: &Memory, bytes: &[u8]) -> Buf {
    let mut frame = memory.alloc_frame(bytes.len()).expect("a frame");
    frame.copy_from_slice(bytes);
    frame.freeze()
}

fn flat(packet: &RxPacket) -> Vec<u8> {
    let mut out = vec![0; packet.frame.len()];
    packet.frame.copy_to_slice(&mut out);
    out
}

/// Frames of ours that have arrived at `end`.
fn poll(end: &mut End) -> Vec<RxPacket> {
    let mut out = Vec::new();
    end.device.receive(&mut out, 64).expect("receive");
    out.retain(|packet| flat(packet).get(12..14) == Some(&TYPE));
    out
}

/// Sends all of `frames` and returns what arrived, as long as something is missing.
fn cross(from: &mut End, to: &mut End, frames: impl IntoIterator<Item = Sga>) -> Vec<RxPacket> {
    let mut queue: VecDeque<TxPacket> = frames.into_iter().map(TxPacket::plain).collect();
    let (want, end) = (queue.len(), Instant::now() + PATIENCE);
    let mut got = Vec::new();
    while got.len() < want {
        from.device.transmit(&mut queue).expect("transmit");
        got.extend(poll(to));
        // Completions come to those who receive.
        assert!(poll(from).is_empty());
        assert!(
            Instant::now() < end,
            "{} of {want} frames arrived, {} wait; {:?}",
            got.len(),
            queue.len(),
            from.device
        );
    }
    got
}

fn both_ways(pair: &mut Pair, mut check: impl FnMut(&mut End, &mut End)) {
    check(&mut pair.near, &mut pair.far);
    check(&mut pair.far, &mut pair.near);
}

pub fn frames_of_every_size_arrive_in_order_both_ways(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        let longest = from.device.link().mtu as usize + 14;
        let sizes: Vec<usize> = (60..200).chain((200..=longest).step_by(61)).chain([longest]).collect();
        let frames: Vec<Sga> =
            sizes.iter().enumerate().map(|(n, &len)| copied(&from.memory, &bytes(n, len)).into()).collect();
        for (at, chunk) in frames.chunks(16).enumerate() {
            let got = cross(from, to, chunk.iter().cloned());
            for (i, packet) in got.iter().enumerate() {
                let n = at * 16 + i;
                assert!(flat(packet) == bytes(n, sizes[n]), "frame {n} of {} bytes", sizes[n]);
            }
        }
        let (sent, received) = (from.device.stats(), to.device.stats());
        assert!(sent.tx_packets >= sizes.len() as u64 && received.rx_packets >= sizes.len() as u64);
    });
}

pub fn frame_of_many_segments_arrives_whole(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        for pieces in [2, 3, 7, 8, 17, 18, 40] {
            let want = bytes(pieces, 1400);
            let frame: Sga = want.chunks(want.len().div_ceil(pieces)).map(|part| copied(&from.memory, part)).collect();
            let got = cross(from, to, [frame]);
            assert!(flat(&got[0]) == want, "{pieces} segments");
        }
    });
}

pub fn frame_in_any_memory_arrives_whole(pair: &mut Pair) {
    static PAYLOAD: [u8; 900] = [0x5a; 900];
    both_ways(pair, |from, to| {
        let want: Vec<u8> = [&bytes(1, 54)[..], &PAYLOAD, &[7; 100]].concat();
        let heap = from.memory.copy_from(&want[..54]).expect("heap");
        let page = copied(&from.memory, &[7; 100]);
        let frame: Sga = [heap, Buf::from_static(&PAYLOAD), page].into_iter().collect();
        let got = cross(from, to, [frame]);
        assert!(flat(&got[0]) == want);
    });
}

pub fn frame_across_pages_arrives_whole(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        let mut run = from.memory.alloc_frame(3 * 4096).expect("pages");
        run.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * 31) >> 3) as u8);
        let run = run.freeze();
        for start in [0, 1, 4000, 4095, 4096, 8000] {
            let header = copied(&from.memory, &bytes(start, 54));
            let payload = run.slice(start..start + 1300);
            let want = [&header[..], &payload[..]].concat();
            let got = cross(from, to, [[header, payload].into_iter().collect()]);
            assert!(flat(&got[0]) == want, "payload at {start}");
        }
    });
}

pub fn frames_beyond_the_ring_wait_and_arrive(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        const FRAMES: usize = 3000;
        let mut queue = VecDeque::new();
        let (mut sent, mut got) = (0, 0);
        let end = Instant::now() + PATIENCE;
        while got < FRAMES {
            // A window keeps kernel queues, which drop what overflows, from overflowing.
            while sent < FRAMES && sent - got < 48 {
                queue.push_back(TxPacket::plain(copied(&from.memory, &bytes(sent, 300))));
                sent += 1;
            }
            from.device.transmit(&mut queue).expect("transmit");
            for packet in poll(to) {
                assert!(flat(&packet) == bytes(got, 300), "frame {got} came as {:?}", &flat(&packet)[..20]);
                got += 1;
            }
            poll(from);
            assert!(Instant::now() < end, "{got} of {FRAMES} frames arrived");
        }
    });
}

pub fn references_are_held_until_sent_and_no_longer(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        let payload = copied(&from.memory, &[0x11; 1200]);
        let frame: Sga = [copied(&from.memory, &bytes(0, 54)), payload.clone()].into_iter().collect();
        let got = cross(from, to, [frame]);
        assert_eq!(got.len(), 1);
        drop(got);
        let end = Instant::now() + PATIENCE;
        while !payload.is_unique() || from.device.in_flight() > 0 {
            assert!(Instant::now() < end, "{} frames are still held", from.device.in_flight());
            poll(to);
            from.device.reclaim();
            poll(from);
        }
    });
}

pub fn one_buffer_sent_many_times_arrives_each_time(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        let payload = copied(&from.memory, &[0x22; 1000]);
        let frames = (0..20).map(|n| [copied(&from.memory, &bytes(n, 54)), payload.clone()].into_iter().collect());
        let frames: Vec<Sga> = frames.collect();
        let got = cross(from, to, frames);
        for (n, packet) in got.iter().enumerate() {
            assert!(flat(packet) == [bytes(n, 54), vec![0x22; 1000]].concat());
        }
    });
}

pub fn frames_that_cannot_be_sent_are_dropped_and_counted(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        let before = from.device.stats().tx_dropped;
        let long = from.device.link().mtu as usize + 19;
        let mut queue: VecDeque<TxPacket> = VecDeque::new();
        queue.push_back(TxPacket::plain(Sga::new()));
        queue.push_back(TxPacket::plain(copied(&from.memory, &bytes(0, long))));
        from.device.transmit(&mut queue).expect("transmit");
        assert!(queue.is_empty(), "what can never be sent must not block the queue");
        assert_eq!(from.device.stats().tx_dropped, before + 2);
        let got = cross(from, to, [copied(&from.memory, &bytes(5, 99)).into()]);
        assert!(flat(&got[0]) == bytes(5, 99), "the device works on");
    });
}

pub fn sleeper_is_woken_by_a_frame_and_not_before(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        for round in 0..5 {
            let end = Instant::now() + PATIENCE;
            // Frames of the kernel may still arrive: drain until it is quiet.
            while !to.device.prepare_sleep() || poll_readable(to.device.wait_fd(), 20) {
                to.device.wake();
                poll(to);
                assert!(Instant::now() < end, "never quiet");
            }
            let mut queue = VecDeque::from([TxPacket::plain(copied(&from.memory, &bytes(round, 200)))]);
            assert_eq!(from.device.transmit(&mut queue).expect("transmit"), 1);
            assert!(poll_readable(to.device.wait_fd(), 2000), "asleep although a frame was sent");
            to.device.wake();
            let mut got = Vec::new();
            while got.is_empty() {
                got = poll(to);
                assert!(Instant::now() < end, "woken without a frame");
            }
            assert!(flat(&got[0]) == bytes(round, 200));
            // With a frame waiting there is no sleep.
            let mut queue = VecDeque::from([TxPacket::plain(copied(&from.memory, &bytes(round, 201)))]);
            from.device.transmit(&mut queue).expect("transmit");
            while to.device.prepare_sleep() {
                to.device.wake();
                assert!(Instant::now() < end, "ready to sleep beside a waiting frame");
            }
            to.device.wake();
            assert!(flat(&poll(to)[0]) == bytes(round, 201));
        }
    });
}

pub fn held_frames_keep_their_bytes(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        let mut held = Vec::new();
        for n in 0..200 {
            let got = cross(from, to, [copied(&from.memory, &bytes(n, 700)).into()]);
            if n % 2 == 0 {
                held.push((n, got));
            }
        }
        for (n, packets) in &held {
            assert!(flat(&packets[0]) == bytes(*n, 700), "frame {n} changed while it was held");
        }
    });
}

/// Ones' complement sum of `data` (RFC 1071), folded.
fn sum(data: &[u8]) -> u16 {
    let mut sum: u32 =
        data.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A UDP packet over IPv4 whose checksum field holds the pseudo-header's sum only.
fn udp_unfinished() -> Vec<u8> {
    let payload = [0x42; 333];
    let udp_len = 8 + payload.len() as u16;
    let mut frame = bytes(0, 12);
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    let header_sum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 17]);
    pseudo.extend(udp_len.to_be_bytes());
    frame.extend([0x30, 0x39, 0x30, 0x39]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend(sum(&pseudo).to_be_bytes());
    frame.extend(payload);
    frame
}

pub fn unfinished_checksum_is_finished_or_told(pair: &mut Pair) {
    both_ways(pair, |from, to| {
        if !from.device.link().offloads.tx_checksum {
            return;
        }
        let mut pseudo_and_data = udp_unfinished();
        let checksum = Some(TxChecksum { start: 34, offset: 6 });
        let offload = TxOffload { checksum, gso: None };
        let frame = copied(&from.memory, &pseudo_and_data).into();
        from.device.transmit(&mut VecDeque::from([TxPacket { frame, offload }])).expect("transmit");
        let (mut got, end) = (Vec::new(), Instant::now() + PATIENCE);
        while !got.iter().any(|p: &RxPacket| p.frame.len() == pseudo_and_data.len()) {
            to.device.receive(&mut got, 16).expect("receive");
            assert!(Instant::now() < end, "the packet never came");
        }
        let packet = got.iter().find(|p| p.frame.len() == pseudo_and_data.len()).expect("just seen");
        match packet.checksum {
            RxChecksum::Partial { start, offset } => {
                assert_eq!((start, offset), (34, 6));
                assert!(flat(packet) == pseudo_and_data);
            }
            _ => {
                let finished = !sum(&pseudo_and_data[34..]);
                pseudo_and_data[40..42].copy_from_slice(&finished.to_be_bytes());
                assert!(flat(packet) == pseudo_and_data, "checksum {:02x?}", &flat(packet)[40..42]);
            }
        }
    });
}
