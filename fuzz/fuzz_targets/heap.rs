//! Buffers beside a shadow: whatever is allocated, cloned, cut, frozen and dropped, every view keeps its bytes and all
//! memory comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_cbuf::{Buf, Memory, MemoryConfig};

const LIMIT: usize = 64 << 20;

fn filled(memory: &Memory, len: usize, frame: bool, seed: u8) -> Option<(Buf, Vec<u8>)> {
    let made = if frame { memory.alloc_frame(len) } else { memory.alloc(len) };
    let mut buf = made.ok()?;
    assert_eq!(buf.len(), len);
    buf.iter_mut().enumerate().for_each(|(i, byte)| *byte = seed.wrapping_add(i as u8));
    let shadow = buf.to_vec();
    Some((buf.freeze(), shadow))
}

fuzz_target!(|data: &[u8]| {
    let memory = Memory::new(MemoryConfig { limit: LIMIT, ..MemoryConfig::default() }).expect("a memory");
    let mut live: Vec<(Buf, Vec<u8>)> = Vec::new();
    for op in data.chunks_exact(4) {
        let (kind, at, a, b) = (op[0], usize::from(op[1]), usize::from(op[2]), usize::from(op[3]));
        let pick = |live: &Vec<_>| at % live.len().max(1);
        match kind % 6 {
            0 => live.extend(filled(&memory, a << (b % 12), false, op[1])),
            1 => live.extend(filled(&memory, (a << (b % 10)).max(1), true, op[1])),
            2 if !live.is_empty() => {
                let copy = live[pick(&live)].clone();
                live.push(copy);
            }
            3 if !live.is_empty() => {
                let i = pick(&live);
                let (buf, shadow) = &mut live[i];
                let cut = (a * 256 + b) % (buf.len() + 1);
                let tail = (buf.split_off(cut), shadow.split_off(cut));
                live.push(tail);
            }
            4 if !live.is_empty() => {
                let i = pick(&live);
                let (buf, shadow) = live.swap_remove(i);
                // The only owner may write; anybody else must be refused.
                match buf.try_into_mut() {
                    Ok(mut owned) => {
                        owned.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                        live.push((owned.freeze(), shadow.iter().map(|byte| byte.wrapping_add(1)).collect()));
                    }
                    Err(shared) => live.push((shared, shadow)),
                }
            }
            _ if !live.is_empty() => {
                let i = pick(&live);
                live.swap_remove(i);
            }
            _ => {}
        }
        if live.len() > 512 {
            live.truncate(256);
        }
    }
    for (buf, shadow) in &live {
        assert_eq!(buf[..], shadow[..]);
    }
    live.clear();
    assert_eq!(memory.stats().buffers_in_use, 0);
});
