//! Counters of a stack; they only grow.

/// What a stack has seen and done since it started.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Frames taken in.
    pub frames_in: u64,
    /// Frames handed to the sink.
    pub frames_out: u64,
    /// Frames that were malformed or failed a checksum.
    pub malformed: u64,
    /// Frames for someone else, or of a kind not spoken.
    pub ignored: u64,
    /// Packets dropped for lack of room.
    pub dropped: u64,
    /// Packets without a route.
    pub no_route: u64,
    /// ICMP errors sent.
    pub errors_out: u64,
    /// TCP connections established.
    pub connections: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes sent (RFC 8985).
    pub probes: u64,
    /// Recoveries entered by acknowledgements.
    pub recoveries: u64,
    /// Recoveries undone because nothing had been lost (RFC 4015).
    pub undone: u64,
    /// SYNs answered with a cookie (RFC 4987).
    pub cookies_sent: u64,
    /// Connections made from a returned cookie.
    pub cookies_taken: u64,
    /// Challenge acknowledgements sent (RFC 5961).
    pub challenges: u64,
    /// Segments dropped by PAWS (RFC 7323).
    pub paws: u64,
    /// Resets sent.
    pub resets_out: u64,
    /// Resets taken.
    pub resets_in: u64,
    /// Connections given up because the peer did not answer.
    pub timed_out: u64,
    /// Payload bytes copied out of receive frames so that the frames could go back.
    pub copied_out: u64,
    /// Payload bytes copied together because too many small pieces made a packet.
    pub gathered: u64,
    /// SYNs dropped because the program does not accept.
    pub overflows: u64,
}
