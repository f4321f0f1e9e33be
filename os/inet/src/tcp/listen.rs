//! Listeners and SYN cookies. A listener keeps a bounded number of half-open connections; while that is exhausted it
//! answers SYNs without keeping anything: what it would have to remember it puts into its sequence number and
//! timestamp (RFC 4987 section 3.6).

use super::TcpId;
use crate::demux::Flow;
use crate::random::Key;
use crate::time::Nanos;
use crate::wire::tcp::{Options, Seq, Tcp, flag};
use std::collections::VecDeque;
use std::net::IpAddr;

/// A cookie's clock.
const TICK: Nanos = Nanos::secs(64);
/// Segment sizes a cookie can name: the nearest below is taken.
const SIZES: [u16; 8] = [536, 1024, 1220, 1360, 1400, 1440, 1460, 8900];
/// "No window scaling" in a cookie's timestamp.
const NO_SCALE: u32 = 15;
const TIME_BITS: u32 = 63;

pub(crate) struct Listener {
    /// `None` listens on every address.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) backlog: u32,
    pub(super) half_open: u32,
    pub(super) ready: VecDeque<TcpId>,
    /// When cookies were last handed out: only then are they taken.
    pub(super) cookies_at: Option<Nanos>,
}

impl Listener {
    pub(super) fn takes(&self, address: IpAddr) -> bool {
        self.address.is_none_or(|own| own == address)
    }

    /// Whether the program accepts too slowly.
    pub(super) fn is_full(&self) -> bool {
        self.ready.len() >= self.backlog as usize
    }

    /// Whether a cookie could still be on its way back.
    pub(super) fn expects_cookies(&self, now: Nanos) -> bool {
        self.cookies_at.is_some_and(|at| now.since(at) <= TICK.times(2))
    }
}

/// What a cookie remembers.
pub(super) struct Remembered {
    pub(super) options: Options,
}

fn tick(now: Nanos) -> u32 {
    (now.0 / TICK.0) as u32 & 31
}

fn digest(key: &Key, flow: &Flow, irs: Seq, tick: u32, size: u32) -> u32 {
    let w = flow.words();
    key.hash(&[w[0], w[1], w[2], w[3], w[4], (u64::from(irs.0) << 16) | u64::from(tick << 8 | size)]) as u32 & 0xff_ffff
}

/// The sequence number to answer `syn` with.
pub(super) fn bake(key: &Key, flow: &Flow, syn: &Tcp, now: Nanos) -> Seq {
    let mss = syn.options.mss.unwrap_or(536);
    let size = SIZES.iter().rposition(|s| *s <= mss).unwrap_or(0) as u32;
    let tick = tick(now);
    Seq(tick << 27 | size << 24 | digest(key, flow, syn.seq, tick, size))
}

/// The timestamp to answer with: the clock's, its low bits replaced by what was agreed, never ahead of the clock.
pub(super) fn stamp(clock: u32, syn: &Tcp, scaling: bool, sack: bool, ecn: bool) -> u32 {
    let scale = if scaling { syn.options.scale.map_or(NO_SCALE, |s| u32::from(s.min(14))) } else { NO_SCALE };
    let sack = u32::from(sack && syn.options.sack_permitted) << 4;
    let ecn = u32::from(ecn && syn.has(flag::ECE | flag::CWR)) << 5;
    let value = clock & !TIME_BITS | scale | sack | ecn;
    if value.wrapping_sub(clock) as i32 > 0 { value.wrapping_sub(TIME_BITS + 1) } else { value }
}

/// What the cookie that `ack` returns remembers, if it is one of ours and not stale.
pub(super) fn taste(key: &Key, flow: &Flow, ack: &Tcp, now: Nanos) -> Option<Remembered> {
    let cookie = ack.ack.0.wrapping_sub(1);
    let irs = Seq(ack.seq.0.wrapping_sub(1));
    let (then, size) = (cookie >> 27, cookie >> 24 & 7);
    let age = tick(now).wrapping_sub(then) & 31;
    if age > 1 || digest(key, flow, irs, then, size) != cookie & 0xff_ffff {
        return None;
    }
    let mut options = Options { mss: Some(SIZES[size as usize]), ..Options::default() };
    if let Some((value, echo)) = ack.options.timestamps {
        options.timestamps = Some((value, 0));
        let scale = echo & 15;
        options.scale = (scale != NO_SCALE).then_some(scale as u8);
        options.sack_permitted = echo >> 4 & 1 == 1;
    }
    Some(Remembered { options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_returned_in_time_by_its_flow_remembers_the_handshake() {
        let key = Key(1, 2);
        let address = |n| IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, n));
        let flow = Flow { local: address(1), remote: address(2), local_port: 80, remote_port: 999 };
        let options = Options {
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            timestamps: Some((5, 0)),
            ..Options::default()
        };
        let syn = Tcp { seq: Seq(100), flags: flag::SYN, options, ..Tcp::default() };
        let now = Nanos::secs(1000);
        let cookie = bake(&key, &flow, &syn, now);
        let value = stamp(12_345, &syn, true, true, false);
        assert!(value <= 12_345 && 12_345 - value < 128);
        let echoed = Options { timestamps: Some((6, value)), ..Options::default() };
        let ack = Tcp { seq: Seq(101), ack: cookie.add(1), flags: flag::ACK, options: echoed, ..Tcp::default() };
        let back = taste(&key, &flow, &ack, now + Nanos::secs(3)).expect("a good cookie");
        assert_eq!((back.options.mss, back.options.scale, back.options.sack_permitted), (Some(1460), Some(7), true));
        assert!(taste(&key, &flow, &ack, now + TICK.times(3)).is_none(), "stale");
        assert!(taste(&key, &Flow { remote_port: 998, ..flow }, &ack, now).is_none(), "another flow");
        assert!(taste(&Key(1, 3), &flow, &ack, now).is_none(), "another secret");
    }
}
