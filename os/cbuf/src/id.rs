//! Names of buffers and of the arenas they lie in.

/// The name of a CBUF in its protection domain: generation (36 bits) and page index (28 bits). A name is never given
/// to two buffers: each reuse of a page raises the generation, and a page whose generations are used up retires.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CbufId(u64);

/// Bits of the page index.
pub(crate) const INDEX_BITS: u32 = 28;
/// One generation in the raw form.
pub(crate) const GENERATION: u64 = 1 << INDEX_BITS;

impl CbufId {
    /// The raw form: generation in the upper 36 bits, page index in the lower 28.
    pub fn from_raw(raw: u64) -> CbufId {
        CbufId(raw)
    }

    /// The raw form.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// How many buffers lay at this page before, plus one.
    pub fn generation(self) -> u64 {
        self.0 >> INDEX_BITS
    }

    /// Index of the first page in the domain's address range.
    pub fn page(self) -> u32 {
        (self.0 & (GENERATION - 1)) as u32
    }
}

impl std::fmt::Debug for CbufId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CbufId({}.{})", self.page(), self.generation())
    }
}

/// The name of a frame arena; never given twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(pub u32);
