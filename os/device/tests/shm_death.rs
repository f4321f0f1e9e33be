//! Two real processes, one of which is killed.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use towpath_cbuf::{Memory, MemoryConfig};
use towpath_device::shm::{ShmConfig, ShmDevice};
use towpath_device::{Error, PacketDevice, TxPacket, poll_readable};

const PLACE: &str = "TOWPATH_TEST_SHM";

fn open() -> Option<(ShmDevice, Memory)> {
    let place = std::env::var_os(PLACE)?;
    let memory = Memory::new(MemoryConfig { frame_bytes: 8 << 20, ..MemoryConfig::default() }).expect("memory");
    let device = ShmDevice::open(place.as_ref(), &memory, ShmConfig::default()).expect("the parent is there");
    Some((device, memory))
}

/// The other process: sends frames that hold their own number until it is killed, and takes what it gets.
#[test]
#[ignore = "started by the test below in a process of its own"]
fn child_that_sends_until_it_is_killed() {
    let Some((mut device, memory)) = open() else { return };
    let (mut queue, mut out, mut number) = (VecDeque::new(), Vec::new(), 0_u64);
    loop {
        if queue.is_empty()
            && let Ok(mut frame) = memory.alloc_frame(2000)
        {
            frame.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
            number += 1;
            queue.push_back(TxPacket::plain(frame.freeze()));
        }
        if device.transmit(&mut queue).is_err() {
            return;
        }
        out.clear();
        let _ = device.receive(&mut out, 16);
    }
}

#[test]
fn peer_killed_while_sending_is_reported_once_all_it_sent_is_read() {
    let dir = towpath_testing::TempDir::new();
    let place = dir.join("link");
    let child = Command::new(std::env::current_exe().expect("this test has a path"))
        .args(["--ignored", "--exact", "child_that_sends_until_it_is_killed"])
        .env(PLACE, &place)
        .stdout(Stdio::null())
        .spawn()
        .expect("the child starts");
    let mut child = towpath_testing::Child(child);
    let memory = Memory::new(MemoryConfig { frame_bytes: 8 << 20, ..MemoryConfig::default() }).expect("memory");
    let mut device = ShmDevice::open(&place, &memory, ShmConfig::default()).expect("the child comes");

    // Something of ours is in its hands when it dies.
    let lent = memory.alloc_frame(4000).expect("frame").freeze();
    let mut queue: VecDeque<TxPacket> = (0..300).map(|_| TxPacket::plain(lent.clone())).collect();
    let (mut got, mut held, mut next) = (Vec::new(), Vec::new(), 0_u64);
    let end = Instant::now() + Duration::from_secs(20);
    let mut killed = false;
    let error = loop {
        assert!(Instant::now() < end, "the death went unnoticed after {next} frames");
        let _ = device.transmit(&mut queue);
        match device.receive(&mut got, 16) {
            Ok(_) => {}
            Err(error) => break error,
        }
        for packet in got.drain(..) {
            let number = next.to_le_bytes();
            let whole = packet.frame.segments().iter().flat_map(|s| s.chunks_exact(8)).all(|word| word == number);
            assert!(whole && packet.frame.len() == 2000, "frame {next} is torn");
            if next.is_multiple_of(50) && held.len() < 100 {
                held.push((next, packet));
            }
            next += 1;
        }
        if next > 5000 && !killed {
            child.0.kill().expect("it lives");
            child.0.wait().expect("it is reaped");
            killed = true;
        }
    };
    assert!(killed);
    assert!(matches!(error, Error::PeerGone), "{error}");
    assert!(poll_readable(device.wait_fd(), 0), "a sleeper would have been woken");
    assert_eq!(device.in_flight(), 0);
    queue.clear();
    assert!(lent.is_unique(), "what the dead process held is ours again");
    for (number, packet) in &held {
        let number = number.to_le_bytes();
        assert!(packet.frame.segments().iter().flat_map(|s| s.chunks_exact(8)).all(|word| word == number));
    }
}
