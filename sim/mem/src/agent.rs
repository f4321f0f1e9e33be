//! The coherent agent port in its immediate form, for the loader, system calls and the debugger: each access finds
//! the newest bytes wherever they are (an L1, a message, the shared cache, a write queue) and changes every copy, so
//! no cache ever holds other bytes than the program wrote. It takes no simulated time; a DMA engine uses the timed
//! port, [`System::agent_port`](crate::System::agent_port).

use crate::packet::{Kind, Line, State};
use crate::system::System;

impl System {
    /// Reads coherently. The range must lie in memory.
    pub fn agent_read(&self, addr: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let at = addr + done as u64;
            let offset = (at & 63) as usize;
            let n = (64 - offset).min(out.len() - done);
            let line = self.newest(at & !63);
            out[done..done + n].copy_from_slice(&line[offset..offset + n]);
            done += n;
        }
    }

    /// Writes coherently: every copy changes, reservations of the lines end. The range must lie in memory.
    pub fn agent_write(&mut self, addr: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = addr + done as u64;
            let n = (64 - (at & 63) as usize).min(bytes.len() - done);
            self.write_everywhere(at, &bytes[done..done + n]);
            done += n;
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.wrote(addr, bytes);
        }
    }

    fn newest(&self, line: u64) -> Line {
        for l1 in &self.l1 {
            if let Some(index) = l1.array.find(line)
                && l1.array.state(index) == State::M
            {
                return *l1.array.data(index);
            }
        }
        let carrying = |kind: Kind| self.packets.iter().find(move |p| p.kind == kind && p.has_data && p.line == line);
        if let Some(p) = carrying(Kind::SnoopAck) {
            return p.data;
        }
        if let Some(index) = self.home.array.find(line) {
            let owner = self.home.meta[index].owner;
            let put = self.packets.iter().find(|p| p.kind == Kind::Put && p.line == line && p.src == owner);
            return put.map_or(*self.home.array.data(index), |p| p.data);
        }
        if let Some(data) = self.home.outgoing(line) {
            return *data;
        }
        if let Some(p) = carrying(Kind::MemWrite) {
            return p.data; // it rests in a write queue
        }
        self.memory.line(line)
    }

    fn write_everywhere(&mut self, addr: u64, bytes: &[u8]) {
        let line = addr & !63;
        let at = (addr & 63) as usize;
        let put = |data: &mut Line| data[at..at + bytes.len()].copy_from_slice(bytes);
        for l1 in &mut self.l1 {
            if let Some(index) = l1.array.find(line) {
                put(l1.array.data_mut(index));
            }
            l1.mshrs.iter_mut().filter(|m| m.line == line).for_each(|m| put(&mut m.data));
            l1.wbs.iter_mut().filter(|w| w.line == line).for_each(|w| put(&mut w.data));
            if l1.reservation.is_some_and(|v| v.line == line) {
                l1.reservation = None;
            }
        }
        self.packets.iter_mut().filter(|p| p.line == line).for_each(|p| put(&mut p.data));
        if let Some(index) = self.home.array.find(line) {
            put(self.home.array.data_mut(index));
        }
        self.home.txns.iter_mut().filter(|t| t.line == line).for_each(|t| put(&mut t.data));
        self.home.buffers.iter_mut().filter(|b| b.line == line).for_each(|b| put(&mut b.data));
        self.memory.write(addr, bytes);
        for port in 0..self.l1.len() {
            if self.notices_wanted >> port & 1 == 1 {
                self.notices[port].push(line);
            }
        }
    }
}
