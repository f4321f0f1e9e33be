//! Errors planted on purpose, to prove that the testers would find them. Nothing but tests and `sim verify` sets one.

/// One planted error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "`describe` says what each does")]
pub enum Mutation {
    None,
    RequestOvertakesPut,
    LostTarget,
    DropDirtyVictim,
    ReservationKept,
    SnoopForgetsData,
    SnoopIgnored,
    HomeForgetsSharer,
    HomeGrantsEarly,
    HomeTakesStalePut,
    HomeSkipsRecall,
    HomeDropsDirtyVictim,
    HomeAlwaysGrantsExclusive,
    HomeReadPassesWriteBack,
    HomeGrantsWithoutData,
    CreditLost,
    DramSkipsForward,
    DramDropsCoalesced,
    DramIgnoresRcd,
    DramIgnoresRp,
    DramIgnoresRas,
    DramIgnoresFaw,
    DramIgnoresRrdL,
    DramIgnoresCcdL,
    DramIgnoresWtrL,
    DramIgnoresRtp,
    DramIgnoresWr,
    DramIgnoresRfc,
    DramIgnoresTurnaround,
    DramIgnoresRankSwitch,
    DramNeverRefreshes,
}

impl Mutation {
    /// Every planted error, `None` left out.
    pub const ALL: &[Mutation] = &[
        Mutation::RequestOvertakesPut,
        Mutation::LostTarget,
        Mutation::DropDirtyVictim,
        Mutation::ReservationKept,
        Mutation::SnoopForgetsData,
        Mutation::SnoopIgnored,
        Mutation::HomeForgetsSharer,
        Mutation::HomeGrantsEarly,
        Mutation::HomeTakesStalePut,
        Mutation::HomeSkipsRecall,
        Mutation::HomeDropsDirtyVictim,
        Mutation::HomeAlwaysGrantsExclusive,
        Mutation::HomeReadPassesWriteBack,
        Mutation::HomeGrantsWithoutData,
        Mutation::CreditLost,
        Mutation::DramSkipsForward,
        Mutation::DramDropsCoalesced,
        Mutation::DramIgnoresRcd,
        Mutation::DramIgnoresRp,
        Mutation::DramIgnoresRas,
        Mutation::DramIgnoresFaw,
        Mutation::DramIgnoresRrdL,
        Mutation::DramIgnoresCcdL,
        Mutation::DramIgnoresWtrL,
        Mutation::DramIgnoresRtp,
        Mutation::DramIgnoresWr,
        Mutation::DramIgnoresRfc,
        Mutation::DramIgnoresTurnaround,
        Mutation::DramIgnoresRankSwitch,
        Mutation::DramNeverRefreshes,
    ];

    #[inline]
    pub(crate) fn is(self, which: Mutation) -> bool {
        self == which
    }

    /// Whether only the checker of DRAM commands can notice.
    pub fn is_dram_timing(self) -> bool {
        self as u8 >= Mutation::DramIgnoresRcd as u8
    }

    /// What the error is, in a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Mutation::None => "no error",
            Mutation::RequestOvertakesPut => "an L1 asks for a line again before its write-back is acknowledged",
            Mutation::LostTarget => "an MSHR forgets its third target",
            Mutation::DropDirtyVictim => "an L1 evicts a modified line without writing it back",
            Mutation::ReservationKept => "a reservation survives the loss of its line",
            Mutation::SnoopForgetsData => "a snooped L1 answers without its modified bytes",
            Mutation::SnoopIgnored => "an invalidated L1 keeps its copy",
            Mutation::HomeForgetsSharer => "the home invalidates all sharers but one",
            Mutation::HomeGrantsEarly => "the home grants before the last snoop answer",
            Mutation::HomeTakesStalePut => "the home takes a write-back from a cache that no longer owns the line",
            Mutation::HomeSkipsRecall => "the home evicts a line without recalling the L1s' copies",
            Mutation::HomeDropsDirtyVictim => "the home evicts a dirty line without writing it to memory",
            Mutation::HomeAlwaysGrantsExclusive => "the home grants a shared line exclusively",
            Mutation::HomeReadPassesWriteBack => "the home reads a line from memory before its write-back arrived",
            Mutation::HomeGrantsWithoutData => "the home believes every requester's claim to hold a copy",
            Mutation::CreditLost => "a crossbar loses a credit now and then",
            Mutation::DramSkipsForward => "a controller reads past its write queue",
            Mutation::DramDropsCoalesced => "a controller drops the newer of two writes to a line",
            Mutation::DramIgnoresRcd => "tRCD is one clock short",
            Mutation::DramIgnoresRp => "tRP is one clock short",
            Mutation::DramIgnoresRas => "tRAS is one clock short",
            Mutation::DramIgnoresFaw => "tFAW is not kept",
            Mutation::DramIgnoresRrdL => "tRRD_L is that of different groups",
            Mutation::DramIgnoresCcdL => "tCCD_L is that of different groups",
            Mutation::DramIgnoresWtrL => "tWTR is two clocks short",
            Mutation::DramIgnoresRtp => "tRTP is one clock short",
            Mutation::DramIgnoresWr => "tWR is one clock short",
            Mutation::DramIgnoresRfc => "tRFC is a clock short",
            Mutation::DramIgnoresTurnaround => "the bus turns from read to write without a gap",
            Mutation::DramIgnoresRankSwitch => "ranks follow each other on the bus without a gap",
            Mutation::DramNeverRefreshes => "no refresh is ever issued",
        }
    }
}
