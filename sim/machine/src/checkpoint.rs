//! Checkpoints of bare-metal machines: a versioned file of harts, devices and the pages of memory that are not zero.
//! Machines that run Linux programs hold open files of the host and cannot be saved.

use crate::devices::Devices;
use crate::error::Error;
use crate::machine::{Machine, Software};
use towpath_isa::vector::VLEN_BYTES;
use towpath_isa::{Csrs, Hart, Mode};

const MAGIC: &[u8; 8] = b"TOWPATHC";
/// Goes up with every change of the layout.
const VERSION: u64 = 1;
const PAGE: usize = 4096;

struct Writer(Vec<u8>);

impl Writer {
    fn word(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        if n > self.0.len() {
            return Err(Error::Checkpoint("the file is truncated".into()));
        }
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        Ok(head)
    }

    fn word(&mut self) -> Result<u64, Error> {
        Ok(self.take(8)?.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let n = self.word()?;
        self.take(usize::try_from(n).unwrap_or(usize::MAX))
    }
}

/// The control registers in the order they are stored.
fn csr_words(c: &mut Csrs) -> [&mut u64; 26] {
    [
        &mut c.mstatus,
        &mut c.medeleg,
        &mut c.mideleg,
        &mut c.mie,
        &mut c.mip,
        &mut c.lines,
        &mut c.mtvec,
        &mut c.mcounteren,
        &mut c.mcountinhibit,
        &mut c.mscratch,
        &mut c.mepc,
        &mut c.mcause,
        &mut c.mtval,
        &mut c.menvcfg,
        &mut c.stvec,
        &mut c.scounteren,
        &mut c.sscratch,
        &mut c.sepc,
        &mut c.scause,
        &mut c.stval,
        &mut c.satp,
        &mut c.senvcfg,
        &mut c.stimecmp,
        &mut c.time,
        &mut c.cycle,
        &mut c.instret,
    ]
}

fn save_hart(out: &mut Writer, hart: &Hart) {
    let mut hart = hart.clone();
    for word in hart.x.iter().chain(&hart.f) {
        out.word(*word);
    }
    out.word(hart.pc);
    out.word(hart.mode as u64);
    for word in csr_words(&mut hart.csrs) {
        out.word(*word);
    }
    out.bytes(&hart.csrs.pmpcfg);
    for word in hart.csrs.pmpaddr {
        out.word(word);
    }
    out.word(u64::from(hart.csrs.frm) << 5 | u64::from(hart.csrs.fflags));
    out.bytes(&hart.v.regs);
    let v = &hart.v;
    for word in [v.vl, v.vstart, u64::from(v.vtype), u64::from(v.vill), u64::from(v.vxrm), u64::from(v.vxsat)] {
        out.word(word);
    }
    // A reservation is lost, as any trap may lose one.
    out.word(u64::from(hart.waiting));
}

fn restore_hart(from: &mut Reader<'_>, hart: &mut Hart) -> Result<(), Error> {
    for word in hart.x.iter_mut().chain(&mut hart.f) {
        *word = from.word()?;
    }
    hart.pc = from.word()?;
    hart.mode = Mode::from_bits(from.word()?);
    for word in csr_words(&mut hart.csrs) {
        *word = from.word()?;
    }
    let wrong = || Error::Checkpoint("the file is damaged".into());
    hart.csrs.pmpcfg = from.bytes()?.try_into().map_err(|_| wrong())?;
    for word in &mut hart.csrs.pmpaddr {
        *word = from.word()?;
    }
    let fcsr = from.word()?;
    (hart.csrs.fflags, hart.csrs.frm) = (fcsr as u8 & 31, (fcsr >> 5) as u8 & 7);
    let regs = from.bytes()?;
    if regs.len() != 32 * VLEN_BYTES {
        return Err(wrong());
    }
    hart.v.regs = regs.to_vec();
    (hart.v.vl, hart.v.vstart) = (from.word()?.min(128), from.word()?.min(127));
    (hart.v.vtype, hart.v.vill) = (from.word()? as u8, from.word()? != 0);
    (hart.v.vxrm, hart.v.vxsat) = (from.word()? as u8 & 3, from.word()? != 0);
    hart.waiting = from.word()? != 0;
    hart.reservation = None;
    Ok(())
}

impl Machine {
    /// Everything that decides how the run goes on, as bytes.
    ///
    /// # Errors
    /// For a machine that runs Linux programs.
    pub fn checkpoint(&self) -> Result<Vec<u8>, Error> {
        let Software::Bare(devices) = &self.software else {
            let why = "a machine that runs Linux programs has open files of the host and cannot be saved";
            return Err(Error::Checkpoint(why.into()));
        };
        let mut out = Writer(MAGIC.to_vec());
        for word in [VERSION, self.harts.len() as u64, self.ram.base(), self.ram.size(), self.cycle, self.instructions]
        {
            out.word(word);
        }
        for (i, hart) in self.harts.iter().enumerate() {
            save_hart(&mut out, hart);
            out.word(u64::from(devices.software[i]));
            out.word(devices.compare[i]);
        }
        out.word(devices.time);
        out.bytes(&devices.output);
        let pages = self.ram.bytes().chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|&b| b != 0));
        for (number, page) in pages {
            out.word(number as u64);
            out.0.extend_from_slice(page);
        }
        Ok(out.0)
    }

    /// Makes this machine, which must be of the same board, what it was when the checkpoint was made.
    ///
    /// # Errors
    /// If the bytes are no checkpoint, of another version or board, or damaged; the machine is then of no further use.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut from = Reader(bytes);
        if from.take(8)? != MAGIC {
            return Err(Error::Checkpoint("not a checkpoint".into()));
        }
        let version = from.word()?;
        if version != VERSION {
            return Err(Error::Checkpoint(format!("version {version}; this program reads version {VERSION}")));
        }
        let (harts, base, size) = (from.word()?, from.word()?, from.word()?);
        if (harts, base, size) != (self.harts.len() as u64, self.ram.base(), self.ram.size()) {
            let why = format!("made on a board with {harts} harts and {size} bytes of memory at {base:#x}");
            return Err(Error::Checkpoint(why));
        }
        (self.cycle, self.instructions) = (from.word()?, from.word()?);
        let mut devices = Devices::new(self.harts.len());
        for (i, hart) in self.harts.iter_mut().enumerate() {
            restore_hart(&mut from, hart)?;
            devices.software[i] = from.word()? != 0;
            devices.compare[i] = from.word()?;
        }
        devices.time = from.word()?;
        devices.output = from.bytes()?.to_vec();
        self.ram.bytes_mut().fill(0);
        while !from.0.is_empty() {
            let number = from.word()?;
            let page = from.take(PAGE)?;
            let at = number.checked_mul(PAGE as u64).and_then(|at| self.ram.slice_mut(base + at, PAGE as u64));
            at.ok_or_else(|| Error::Checkpoint("a page lies outside memory".into()))?.copy_from_slice(page);
        }
        self.software = Software::Bare(devices);
        self.forget_caches();
        Ok(())
    }
}
