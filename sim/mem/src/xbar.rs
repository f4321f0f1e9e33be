//! A crossbar: one layer a destination port, four virtual channels a layer. A message starts across only when its
//! channel has a credit, that is a free place in the destination's buffer; among the channels that have one, the
//! oldest message goes first. A blocked channel never blocks another.

use crate::config::XbarConfig;
use crate::packet::{Packet, Slab, Vc};
use crate::queue::Tick;
use std::collections::VecDeque;

pub(crate) struct Out {
    queues: [VecDeque<u32>; 4],
    credits: [u16; 4],
    busy_until: Tick,
    /// A pump event is on its way.
    pub(crate) armed: bool,
}

pub(crate) struct Xbar {
    config: XbarConfig,
    pub(crate) outs: Vec<Out>,
    order: u64,
    /// Picoseconds each layer was busy.
    pub(crate) busy: Vec<Tick>,
    pub(crate) messages: [u64; 4],
}

impl Xbar {
    pub(crate) fn new(config: XbarConfig, ports: usize) -> Xbar {
        let outs = (0..ports)
            .map(|_| Out {
                queues: std::array::from_fn(|_| VecDeque::with_capacity(64)),
                credits: config.credits,
                busy_until: 0,
                armed: false,
            })
            .collect();
        Xbar { config, outs, order: 0, busy: vec![0; ports], messages: [0; 4] }
    }

    /// Queues a packet; the tick at which its layer should be pumped, unless a pump is under way.
    pub(crate) fn send(&mut self, now: Tick, index: u32, packet: &mut Packet) -> Option<Tick> {
        self.order += 1;
        packet.order = self.order;
        let out = &mut self.outs[packet.dst as usize];
        out.queues[packet.kind.vc() as usize].push_back(index);
        self.arm(now, packet.dst as usize)
    }

    fn arm(&mut self, now: Tick, port: usize) -> Option<Tick> {
        let out = &mut self.outs[port];
        if out.armed {
            return None;
        }
        let ready = (0..4).any(|v| out.credits[v] > 0 && !out.queues[v].is_empty());
        out.armed = ready;
        ready.then(|| now.max(out.busy_until).next_multiple_of(self.config.period))
    }

    /// Starts the next message to `port`: the packet with its arrival, and when to pump again.
    pub(crate) fn pump(&mut self, now: Tick, port: usize, slab: &Slab) -> (Option<(u32, Tick)>, Option<Tick>) {
        let out = &mut self.outs[port];
        out.armed = false;
        let oldest = (0..4)
            .filter(|&v| out.credits[v] > 0)
            .filter_map(|v| out.queues[v].front().map(|&i| (slab[i].order, v, i)))
            .min();
        let Some((_, vc, index)) = oldest else { return (None, None) };
        out.queues[vc].pop_front();
        out.credits[vc] -= 1;
        let bytes = if slab[index].has_data { 64 } else { 8 };
        let beats = u64::from(bytes.max(1u32).div_ceil(self.config.width));
        // A header travels with its data's first beat but needs one of its own (gem5's header latency).
        let occupied = beats * self.config.period;
        out.busy_until = now + occupied;
        self.busy[port] += occupied;
        self.messages[vc] += 1;
        let arrival = now + occupied + u64::from(self.config.latency[vc]) * self.config.period;
        (Some((index, arrival)), self.arm(now, port))
    }

    /// The destination has consumed a message of this channel.
    pub(crate) fn release(&mut self, now: Tick, port: usize, vc: Vc) -> Option<Tick> {
        self.outs[port].credits[vc as usize] += 1;
        assert!(
            self.outs[port].credits[vc as usize] <= self.config.credits[vc as usize],
            "a credit was returned twice"
        );
        self.arm(now, port)
    }

    pub(crate) fn idle(&self) -> bool {
        self.outs.iter().all(|o| o.queues.iter().all(VecDeque::is_empty) && o.credits == self.config.credits)
    }
}
