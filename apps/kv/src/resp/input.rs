//! Requests out of received buffers, without a copy of what is large and without a scan repeated.
//!
//! A request that lies within one received buffer is parsed in place: its arguments are ranges of that buffer. One
//! that spans buffers is taken apart step by step as bytes arrive, so that a client that sends a byte at a time costs
//! no more work than its bytes; its large arguments keep the received buffers, its small ones are copied together.

use super::args::{Arg, Args, RETAIN_MIN};
use crate::number::parse_i64;
use std::collections::VecDeque;
use std::fmt;
use towpath_cbuf::{Buf, Memory, Sga};

/// Longest inline request, and longest line without an end that is waited for, in bytes.
const INLINE_MAX: usize = 64 * 1024;
/// Most arguments of one request.
const MULTIBULK_MAX: i64 = 1024 * 1024;
/// Longest header line (`*N` or `$N`) that can be valid: a mark, 20 digits, some slack for a clear error.
const HEADER_MAX: usize = 32;
/// Received buffers shorter than this are copied together once [`RUN_MAX`] of them wait.
const SHORT: usize = 2048;
/// How many short buffers may wait side by side.
const RUN_MAX: usize = 16;

/// What a request may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest argument in bytes (`proto-max-bulk-len`).
    pub bulk_max: usize,
    /// Most bytes of one unfinished request (`client-query-buffer-limit`).
    pub query_max: usize,
    /// The client may only log in: its requests are kept tiny.
    pub unauthenticated: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bulk_max: 512 << 20, query_max: 1 << 30, unauthenticated: false }
    }
}

/// A request that no reading of the protocol allows; the connection ends after the error is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number after `*` is none, or too large.
    MultibulkLength,
    /// The number after `$` is none, or larger than the limit.
    BulkLength,
    /// This byte stands where `$` must.
    Expected(u8),
    /// An inline request goes on for more than 64 KB.
    InlineTooBig,
    /// A quote of an inline request is not closed.
    Quotes,
    /// More than ten arguments before logging in.
    UnauthenticatedMultibulk,
    /// An argument over 16 KB before logging in.
    UnauthenticatedBulk,
    /// The unfinished request exceeds its limit.
    QueryTooBig,
    /// No memory for the request.
    OutOfMemory,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ProtocolError::MultibulkLength => "invalid multibulk length",
            ProtocolError::BulkLength => "invalid bulk length",
            ProtocolError::Expected(got) => return write!(f, "Protocol error: expected '$', got '{}'", shown(*got)),
            ProtocolError::InlineTooBig => "too big inline request",
            ProtocolError::Quotes => "unbalanced quotes in request",
            ProtocolError::UnauthenticatedMultibulk => "unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulk => "unauthenticated bulk length",
            ProtocolError::QueryTooBig => "too big query buffer",
            ProtocolError::OutOfMemory => "out of memory for the request",
        };
        write!(f, "Protocol error: {text}")
    }
}

/// A byte that can stand in an error line.
fn shown(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' }
}

/// What a look at the start of some bytes found.
enum Header {
    /// A line of this many bytes, its end not counted, and its two end bytes are there.
    Line(usize),
    Incomplete,
    TooLong,
}

fn header(data: &[u8]) -> Header {
    let window = &data[..data.len().min(HEADER_MAX)];
    match window.iter().position(|&b| b == b'\r') {
        Some(at) if at + 2 <= data.len() => Header::Line(at),
        Some(_) => Header::Incomplete,
        None if window.len() < HEADER_MAX => Header::Incomplete,
        None => Header::TooLong,
    }
}

/// Number of arguments from a line that starts with `*`.
fn multibulk_count(line: &[u8], limits: &Limits) -> Result<usize, ProtocolError> {
    match parse_i64(&line[1..]) {
        Some(n) if n > MULTIBULK_MAX => Err(ProtocolError::MultibulkLength),
        Some(n) if n > 10 && limits.unauthenticated => Err(ProtocolError::UnauthenticatedMultibulk),
        Some(n) => Ok(usize::try_from(n).unwrap_or(0)),
        None => Err(ProtocolError::MultibulkLength),
    }
}

/// Length of an argument from a line that should start with `$`.
fn bulk_len(line: &[u8], limits: &Limits) -> Result<usize, ProtocolError> {
    match line.first() {
        Some(b'$') => {}
        Some(&other) => return Err(ProtocolError::Expected(other)),
        None => return Err(ProtocolError::Expected(b'\r')),
    }
    let n = parse_i64(&line[1..]).and_then(|n| usize::try_from(n).ok()).ok_or(ProtocolError::BulkLength)?;
    if n > limits.bulk_max {
        return Err(ProtocolError::BulkLength);
    }
    if n > 16384 && limits.unauthenticated {
        return Err(ProtocolError::UnauthenticatedBulk);
    }
    Ok(n)
}

/// What parsing one stretch of bytes in place came to.
enum Step {
    Complete(usize),
    Incomplete,
}

/// Parses one `*N` request at the start of `data`, appending the ranges of its arguments shifted by `shift`.
fn parse_flat(data: &[u8], shift: u32, ranges: &mut Vec<(u32, u32)>, limits: &Limits) -> Result<Step, ProtocolError> {
    let line = match header(data) {
        Header::Line(n) => n,
        Header::Incomplete => return Ok(Step::Incomplete),
        Header::TooLong => return Err(ProtocolError::MultibulkLength),
    };
    let count = multibulk_count(&data[..line], limits)?;
    let mut at = line + 2;
    for _ in 0..count {
        let rest = &data[at..];
        let line = match header(rest) {
            Header::Line(n) => n,
            Header::Incomplete => return Ok(Step::Incomplete),
            Header::TooLong if rest[0] == b'$' => return Err(ProtocolError::BulkLength),
            Header::TooLong => return Err(ProtocolError::Expected(rest[0])),
        };
        let len = bulk_len(&rest[..line], limits)?;
        let start = at + line + 2;
        if data.len() < start + len + 2 {
            return Ok(Step::Incomplete);
        }
        ranges.push((shift + start as u32, len as u32));
        at = start + len + 2;
    }
    Ok(Step::Complete(at))
}

/// A request whose bytes are still arriving.
#[derive(Default)]
struct Partial {
    /// Arguments still to come; `None` before the first line.
    remaining: Option<usize>,
    /// Length of the argument whose header has been read.
    bulk: Option<usize>,
    /// Arguments already complete, and how many bytes they hold.
    args: Vec<Arg>,
    taken: usize,
}

#[derive(PartialEq)]
enum Ready {
    Nothing,
    Flat,
    Owned,
}

/// The receiving side of one connection.
pub struct Input {
    memory: Memory,
    pending: VecDeque<Buf>,
    /// Bytes of `pending[0]` already used.
    cursor: usize,
    /// Bytes waiting in all of `pending`, used ones not counted.
    total: usize,
    /// Short buffers at the end of `pending`.
    run: usize,
    /// Bytes at the front known to hold no end of an inline request.
    scanned: usize,
    ranges: Vec<(u32, u32)>,
    owned: Vec<Arg>,
    partial: Option<Partial>,
    ready: Ready,
}

impl Input {
    /// An input that copies what must be copied into `memory`.
    pub fn new(memory: Memory) -> Input {
        Input {
            memory,
            pending: VecDeque::new(),
            cursor: 0,
            total: 0,
            run: 0,
            scanned: 0,
            ranges: Vec::new(),
            owned: Vec::new(),
            partial: None,
            ready: Ready::Nothing,
        }
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// [`ProtocolError::OutOfMemory`] if short buffers cannot be copied together.
    pub fn feed(&mut self, received: &Sga) -> Result<(), ProtocolError> {
        for buf in received.segments() {
            if buf.is_empty() {
                continue;
            }
            self.total += buf.len();
            self.run = if buf.len() < SHORT { self.run + 1 } else { 0 };
            self.pending.push_back(buf.clone());
            if self.run >= RUN_MAX {
                self.join_run()?;
            }
        }
        Ok(())
    }

    /// Bytes that wait to be parsed.
    pub fn waiting(&self) -> usize {
        self.total
    }

    /// Bytes held for the unfinished request and whatever follows it.
    pub fn held(&self) -> usize {
        self.total + self.partial.as_ref().map_or(0, |p| p.taken)
    }

    /// Advances to the next request; true if [`Input::args`] now gives it, false if more bytes are needed.
    ///
    /// # Errors
    /// A [`ProtocolError`]; the input must not be used further.
    pub fn next(&mut self, limits: &Limits) -> Result<bool, ProtocolError> {
        self.owned.clear();
        self.ready = Ready::Nothing;
        loop {
            if self.partial.is_some() {
                match self.advance_partial(limits)? {
                    Some(true) => return Ok(true),
                    Some(false) => continue,
                    None => return Ok(false),
                }
            }
            self.drop_used();
            let Some(front) = self.pending.front() else { return Ok(false) };
            let data = &front[self.cursor..];
            if data[0] != b'*' {
                match self.inline()? {
                    Some(true) => return Ok(true),
                    Some(false) => continue,
                    None => return Ok(false),
                }
            }
            self.ranges.clear();
            match parse_flat(data, self.cursor as u32, &mut self.ranges, limits)? {
                Step::Complete(n) => {
                    self.cursor += n;
                    self.total -= n;
                    if !self.ranges.is_empty() {
                        self.ready = Ready::Flat;
                        return Ok(true);
                    }
                }
                Step::Incomplete => self.partial = Some(Partial::default()),
            }
        }
    }

    /// The request that [`Input::next`] found.
    pub fn args(&self) -> Args<'_> {
        match (&self.ready, self.pending.front()) {
            (Ready::Flat, Some(base)) => Args::flat(base, &self.ranges),
            _ => Args::owned(&self.owned),
        }
    }

    /// Called when no more requests can be parsed: a short remainder is copied out, so that an idle connection does
    /// not hold a whole receive buffer for it.
    ///
    /// # Errors
    /// [`ProtocolError::OutOfMemory`].
    pub fn settle(&mut self) -> Result<(), ProtocolError> {
        self.owned.clear();
        self.ready = Ready::Nothing;
        self.drop_used();
        if self.pending.len() == 1 && self.total < SHORT {
            let rest =
                self.memory.copy_from(&self.pending[0][self.cursor..]).map_err(|_| ProtocolError::OutOfMemory)?;
            self.pending[0] = rest;
            self.cursor = 0;
        }
        if self.pending.is_empty() && self.pending.capacity() > 64 {
            self.pending.shrink_to(4);
        }
        Ok(())
    }

    fn drop_used(&mut self) {
        while self.pending.front().is_some_and(|b| b.len() == self.cursor) {
            self.pending.pop_front();
            self.cursor = 0;
        }
        self.run = self.run.min(self.pending.len());
    }

    /// Copies the short buffers at the end together.
    fn join_run(&mut self) -> Result<(), ProtocolError> {
        let first = self.pending.len() - self.run;
        // The front buffer is partly used; its used bytes may not come back.
        let first = if first == 0 && self.cursor > 0 { 1 } else { first };
        if self.pending.len() - first < 2 {
            return Ok(());
        }
        let mut joined = Vec::new();
        for buf in self.pending.drain(first..) {
            joined.extend_from_slice(&buf);
        }
        let buf = self.memory.copy_from(&joined).map_err(|_| ProtocolError::OutOfMemory)?;
        self.run = usize::from(buf.len() < SHORT);
        self.pending.push_back(buf);
        Ok(())
    }

    /// Copies up to `out.len()` waiting bytes without using them; how many there were.
    fn peek(&self, out: &mut [u8]) -> usize {
        let (mut filled, mut skip) = (0, self.cursor);
        for buf in &self.pending {
            let part = &buf[skip..];
            skip = 0;
            let n = part.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&part[..n]);
            filled += n;
            if filled == out.len() {
                break;
            }
        }
        filled
    }

    /// Uses up `n` waiting bytes.
    fn skip(&mut self, mut n: usize) {
        self.total -= n;
        while n > 0 {
            let here = (self.pending[0].len() - self.cursor).min(n);
            self.cursor += here;
            n -= here;
            self.drop_used();
        }
    }

    /// Takes `n` waiting bytes: copied when short, else the buffers themselves.
    fn take(&mut self, n: usize) -> Arg {
        if n < RETAIN_MIN {
            let mut bytes = vec![0; n];
            self.peek(&mut bytes);
            self.skip(n);
            return Arg::Bytes(bytes);
        }
        self.total -= n;
        let (mut sga, mut left) = (Sga::new(), n);
        while left > 0 {
            self.drop_used();
            let here = (self.pending[0].len() - self.cursor).min(left);
            sga.push_back(self.pending[0].slice(self.cursor..self.cursor + here));
            self.cursor += here;
            left -= here;
        }
        self.drop_used();
        Arg::Retained(sga)
    }

    /// `Some(true)`: a request is ready. `Some(false)`: an empty one was passed over. `None`: more bytes are needed.
    fn advance_partial(&mut self, limits: &Limits) -> Result<Option<bool>, ProtocolError> {
        loop {
            let Some(partial) = &mut self.partial else { return Ok(Some(false)) };
            if self.total + partial.taken > limits.query_max {
                return Err(ProtocolError::QueryTooBig);
            }
            if let Some(len) = partial.bulk {
                if self.total < len + 2 {
                    return Ok(None);
                }
                partial.bulk = None;
                partial.taken += len;
                let left = partial.remaining.map_or(0, |n| n - 1);
                partial.remaining = Some(left);
                let arg = self.take(len);
                self.skip(2);
                let Some(partial) = &mut self.partial else { return Ok(Some(false)) };
                partial.args.push(arg);
                if left == 0 {
                    self.owned = std::mem::take(&mut partial.args);
                    self.partial = None;
                    self.ready = Ready::Owned;
                    return Ok(Some(true));
                }
                continue;
            }
            if !self.partial_header(limits)? {
                return Ok(None);
            }
            if self.partial.as_ref().is_some_and(|p| p.remaining == Some(0)) {
                self.partial = None;
                return Ok(Some(false));
            }
        }
    }

    /// Reads the next header line of the unfinished request; false if it is not there yet.
    fn partial_header(&mut self, limits: &Limits) -> Result<bool, ProtocolError> {
        let mut window = [0u8; HEADER_MAX + 2];
        let have = self.peek(&mut window);
        let first = self.partial.as_ref().is_some_and(|p| p.remaining.is_none());
        let line = match header(&window[..have]) {
            Header::Line(n) => n,
            Header::Incomplete => return Ok(false),
            Header::TooLong if first => return Err(ProtocolError::MultibulkLength),
            Header::TooLong if window[0] == b'$' => return Err(ProtocolError::BulkLength),
            Header::TooLong => return Err(ProtocolError::Expected(window[0])),
        };
        if let Some(partial) = &mut self.partial {
            if first {
                partial.remaining = Some(multibulk_count(&window[..line], limits)?);
            } else {
                partial.bulk = Some(bulk_len(&window[..line], limits)?);
            }
        }
        self.skip(line + 2);
        Ok(true)
    }

    /// An inline request; the answers mean what they mean in `advance_partial`.
    fn inline(&mut self) -> Result<Option<bool>, ProtocolError> {
        let mut at = 0;
        let mut end = None;
        let mut skip = self.cursor;
        for buf in &self.pending {
            let part = &buf[skip..];
            skip = 0;
            let from = self.scanned.saturating_sub(at).min(part.len());
            if let Some(n) = part[from..].iter().position(|&b| b == b'\n') {
                end = Some(at + from + n);
                break;
            }
            at += part.len();
            if at > INLINE_MAX {
                break;
            }
        }
        let Some(end) = end else {
            self.scanned = at;
            return if at > INLINE_MAX { Err(ProtocolError::InlineTooBig) } else { Ok(None) };
        };
        if end > INLINE_MAX {
            return Err(ProtocolError::InlineTooBig);
        }
        self.scanned = 0;
        let mut line = vec![0; end];
        self.peek(&mut line);
        self.skip(end + 1);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        let words = split_inline(&line).ok_or(ProtocolError::Quotes)?;
        if words.is_empty() {
            return Ok(Some(false));
        }
        self.owned.extend(words.into_iter().map(Arg::Bytes));
        self.ready = Ready::Owned;
        Ok(Some(true))
    }
}

/// Splits an inline request into words: blanks separate, `"..."` takes escapes (`\n \r \t \b \a \xHH`), `'...'` takes
/// `\'`. `None` when a quote is not closed or is followed by something other than a blank.
pub fn split_inline(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|b| b.is_ascii_whitespace() || *b == 0x0b) {
            at += 1;
        }
        if at >= line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        at = inline_word(line, at, &mut word)?;
        words.push(word);
    }
}

/// Reads one word from `at`; the position after it.
fn inline_word(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match line.get(at) {
            None => return Some(at),
            Some(b' ' | b'\n' | b'\r' | b'\t' | 0) => return Some(at + 1),
            Some(b'"') => {
                at = double_quoted(line, at + 1, word)?;
                return after_quote(line, at);
            }
            Some(b'\'') => {
                at = single_quoted(line, at + 1, word)?;
                return after_quote(line, at);
            }
            Some(&byte) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

/// A closing quote must be followed by a blank or the end.
fn after_quote(line: &[u8], at: usize) -> Option<usize> {
    line.get(at).is_none_or(|b| b.is_ascii_whitespace() || *b == 0x0b).then_some(at)
}

fn single_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match *line.get(at)? {
            b'\\' if line.get(at + 1) == Some(&b'\'') => {
                word.push(b'\'');
                at += 2;
            }
            b'\'' => return Some(at + 1),
            byte => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn double_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    let hex = |at: usize| line.get(at).and_then(|b| char::from(*b).to_digit(16)).map(|d| d as u8);
    loop {
        match *line.get(at)? {
            b'\\' if line.get(at + 1) == Some(&b'x') && hex(at + 2).is_some() && hex(at + 3).is_some() => {
                word.push(hex(at + 2)? * 16 + hex(at + 3)?);
                at += 4;
            }
            b'\\' if at + 1 < line.len() => {
                word.push(match line[at + 1] {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                at += 2;
            }
            b'"' => return Some(at + 1),
            byte => {
                word.push(byte);
                at += 1;
            }
        }
    }
}
