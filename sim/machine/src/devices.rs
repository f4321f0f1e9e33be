//! What answers beside memory on a bare-metal board, at the addresses of QEMU's `virt` machine: the CLINT (software
//! interrupts and timers), a UART that only transmits, and the test finisher that ends the run.

use towpath_core as core;

const CLINT: u64 = 0x200_0000;
const CLINT_END: u64 = CLINT + 0x1_0000;
const MTIMECMP: u64 = CLINT + 0x4000;
const MTIME: u64 = CLINT + 0xbff8;
const UART: u64 = 0x1000_0000;
const FINISHER: u64 = 0x10_0000;
/// Line status: transmitter empty.
const UART_IDLE: u64 = 0x60;

/// Devices of a bare-metal board.
#[derive(Clone, Debug)]
pub struct Devices {
    /// `msip` of each hart.
    pub software: Vec<bool>,
    /// `mtimecmp` of each hart.
    pub compare: Vec<u64>,
    /// `mtime`, kept current by the machine.
    pub time: u64,
    /// Bytes the UART sent.
    pub output: Vec<u8>,
    /// Exit code, once the finisher was written.
    pub finished: Option<i32>,
}

impl Devices {
    /// Devices for `harts` harts, out of reset.
    pub fn new(harts: usize) -> Devices {
        Devices {
            software: vec![false; harts],
            compare: vec![u64::MAX; harts],
            time: 0,
            output: Vec::new(),
            finished: None,
        }
    }
}

impl core::Devices for Devices {
    fn load(&mut self, _: u64, pa: u64, size: u64) -> Option<u64> {
        let value = match pa {
            MTIME..CLINT_END => self.time >> (8 * (pa - MTIME)),
            MTIMECMP..MTIME => {
                let word = *self.compare.get(((pa - MTIMECMP) / 8) as usize)?;
                word >> (8 * (pa % 8))
            }
            CLINT..MTIMECMP => u64::from(*self.software.get(((pa - CLINT) / 4) as usize)?),
            0x1000_0005 => UART_IDLE,
            UART..0x1000_0008 => 0,
            _ => return None,
        };
        Some(if size == 8 { value } else { value & ((1 << (8 * size)) - 1) })
    }

    fn store(&mut self, _: u64, pa: u64, size: u64, value: u64) -> Option<()> {
        match pa {
            MTIME..CLINT_END => self.time = value,
            MTIMECMP..MTIME => {
                let word = self.compare.get_mut(((pa - MTIMECMP) / 8) as usize)?;
                *word = match (size, pa % 8) {
                    (8, 0) => value,
                    (4, 0) => *word & !0xffff_ffff | value & 0xffff_ffff,
                    (4, 4) => *word & 0xffff_ffff | value << 32,
                    _ => return None,
                };
            }
            CLINT..MTIMECMP => *self.software.get_mut(((pa - CLINT) / 4) as usize)? = value & 1 == 1,
            UART => self.output.push(value as u8),
            0x1000_0001..0x1000_0008 => {}
            // 0x5555 passes; 0x3333 fails with the code above it.
            FINISHER if value & 0xffff == 0x5555 => self.finished = Some(0),
            FINISHER if value & 0xffff == 0x3333 => self.finished = Some((value >> 16) as i32 & 0xff),
            _ => return None,
        }
        Some(())
    }
}
