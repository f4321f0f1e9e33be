//! Messages between the parts, their virtual channels, and the slab they live in.

/// Bytes of a cache line.
pub const LINE: u64 = 64;
pub(crate) type Line = [u8; 64];
pub(crate) const NIL: u32 = u32::MAX;

/// A virtual channel. Higher ones never wait for lower ones, so the responses always drain and everything moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Vc {
    Request = 0,
    WriteBack = 1,
    Snoop = 2,
    Response = 3,
}

/// The state of a line in an L1 (MESI).
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Not held.
    I = 0,
    /// Readable, perhaps with others.
    S = 1,
    /// The only copy, same as below.
    E = 2,
    /// The only copy, newer than below.
    M = 3,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    GetS,
    GetM,
    Clean,
    Flush,
    MemRead,
    Put,
    MemWrite,
    SnoopShare,
    SnoopInvalidate,
    SnoopAck,
    Grant,
    GrantAck,
    PutAck,
    CboDone,
    MemData,
    MemAck,
}

impl Kind {
    pub(crate) fn vc(self) -> Vc {
        match self {
            Kind::GetS | Kind::GetM | Kind::Clean | Kind::Flush | Kind::MemRead => Vc::Request,
            Kind::Put | Kind::MemWrite => Vc::WriteBack,
            Kind::SnoopShare | Kind::SnoopInvalidate => Vc::Snoop,
            _ => Vc::Response,
        }
    }
}

/// One message; the line travels inside.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub kind: Kind,
    /// Ports of the crossbar it travels on.
    pub src: u8,
    pub dst: u8,
    /// The L1's MSHR or write buffer, or the home's, that the answer belongs to.
    pub slot: u16,
    pub txn: u16,
    pub has_data: bool,
    /// Requester still holds a shared copy (GetM); responder keeps one (SnoopAck).
    pub keeps: bool,
    pub prefetch: bool,
    pub grant: State,
    pub line: u64,
    pub pc: u64,
    /// Position in the order of sending, for the oldest-first arbiter.
    pub order: u64,
    pub next: u32,
    pub data: Line,
}

impl Packet {
    pub(crate) fn new(kind: Kind, line: u64, src: u8, dst: u8) -> Packet {
        Packet {
            kind,
            src,
            dst,
            slot: 0,
            txn: 0,
            has_data: false,
            keeps: false,
            prefetch: false,
            grant: State::I,
            line,
            pc: 0,
            order: 0,
            next: NIL,
            data: [0; 64],
        }
    }

    /// A message that carries the line.
    pub(crate) fn with_data(mut self, data: &Line) -> Packet {
        self.has_data = true;
        self.data = *data;
        self
    }
}

/// Packets by index, reused through a free list.
pub(crate) struct Slab {
    packets: Vec<Packet>,
    live: Vec<bool>,
    free: Vec<u32>,
}

impl Slab {
    pub(crate) fn new() -> Slab {
        Slab { packets: Vec::with_capacity(256), live: Vec::with_capacity(256), free: Vec::with_capacity(256) }
    }

    pub(crate) fn insert(&mut self, packet: Packet) -> u32 {
        if let Some(index) = self.free.pop() {
            self.packets[index as usize] = packet;
            self.live[index as usize] = true;
            return index;
        }
        self.packets.push(packet);
        self.live.push(true);
        (self.packets.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, index: u32) {
        assert!(std::mem::replace(&mut self.live[index as usize], false), "a packet was freed twice");
        self.free.push(index);
    }

    pub(crate) fn live(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets.iter_mut().zip(&self.live).filter(|(_, live)| **live).map(|(p, _)| p)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().zip(&self.live).filter(|(_, live)| **live).map(|(p, _)| p)
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Packet;
    fn index(&self, index: u32) -> &Packet {
        &self.packets[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, index: u32) -> &mut Packet {
        &mut self.packets[index as usize]
    }
}
