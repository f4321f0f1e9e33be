//! Plain physical memory, and the devices beside it.

/// Physical memory: one run of bytes. Untouched pages cost the host nothing.
pub struct Ram {
    base: u64,
    bytes: Vec<u8>,
}

impl Ram {
    /// `size` bytes of zeros at physical address `base`.
    pub fn new(base: u64, size: usize) -> Ram {
        Ram { base, bytes: vec![0; size] }
    }

    /// The first physical address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Every byte, index 0 being physical address [`Ram::base`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Every byte, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Where `size` bytes at `pa` stand in [`Ram::bytes`]; `None` if any lies outside.
    pub fn index(&self, pa: u64, size: u64) -> Option<usize> {
        let at = pa.checked_sub(self.base)?;
        (at.checked_add(size)? <= self.size()).then_some(at as usize)
    }

    /// The bytes at a physical address.
    pub fn slice(&self, pa: u64, size: u64) -> Option<&[u8]> {
        self.index(pa, size).map(|at| &self.bytes[at..at + size as usize])
    }

    /// The bytes at a physical address, to be changed.
    pub fn slice_mut(&mut self, pa: u64, size: u64) -> Option<&mut [u8]> {
        self.index(pa, size).map(|at| &mut self.bytes[at..at + size as usize])
    }

    /// Reads `size` (up to 8) bytes, zero-extended.
    pub fn load(&self, pa: u64, size: u64) -> Option<u64> {
        let mut word = [0; 8];
        word.get_mut(..size as usize)?.copy_from_slice(self.slice(pa, size)?);
        Some(u64::from_le_bytes(word))
    }

    /// Writes the low `size` (up to 8) bytes of `value`.
    pub fn store(&mut self, pa: u64, size: u64, value: u64) -> Option<()> {
        let bytes = value.to_le_bytes();
        self.slice_mut(pa, size)?.copy_from_slice(bytes.get(..size as usize)?);
        Some(())
    }
}

/// What answers at physical addresses outside memory. Accesses are aligned or split by the core.
pub trait Devices {
    /// A load by hart `hart`; `None` where nothing answers.
    fn load(&mut self, hart: u64, pa: u64, size: u64) -> Option<u64>;
    /// A store by hart `hart`; `None` where nothing answers.
    fn store(&mut self, hart: u64, pa: u64, size: u64, value: u64) -> Option<()>;
}

/// A machine without devices.
pub struct NoDevices;

impl Devices for NoDevices {
    fn load(&mut self, _: u64, _: u64, _: u64) -> Option<u64> {
        None
    }

    fn store(&mut self, _: u64, _: u64, _: u64, _: u64) -> Option<()> {
        None
    }
}
