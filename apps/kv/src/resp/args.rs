//! The arguments of one request, as views of the buffers it arrived in.

use std::borrow::Cow;
use towpath_cbuf::{Buf, Sga};

/// Arguments of at least this many bytes keep the buffers they arrived in; shorter ones are copied. A page holds two.
pub const RETAIN_MIN: usize = 2048;

/// One argument that outlives the buffer it was parsed from.
#[derive(Clone)]
pub enum Arg {
    /// Copied bytes.
    Bytes(Vec<u8>),
    /// References to received buffers.
    Retained(Sga),
}

/// The arguments of the current request; the first is the command's name.
#[derive(Clone, Copy)]
pub struct Args<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Flat { base: &'a Buf, ranges: &'a [(u32, u32)] },
    Owned(&'a [Arg]),
}

/// Where the bytes of an argument are.
pub enum Payload<'a> {
    /// Within one buffer, from here, this many bytes.
    Within(&'a Buf, usize, usize),
    /// Copied.
    Bytes(&'a [u8]),
    /// In one or more buffers of its own.
    Buffers(&'a Sga),
}

impl<'a> Args<'a> {
    /// Arguments that are ranges (start, length) of one buffer.
    pub fn flat(base: &'a Buf, ranges: &'a [(u32, u32)]) -> Args<'a> {
        Args(Form::Flat { base, ranges })
    }

    /// Arguments that own their bytes.
    pub fn owned(args: &'a [Arg]) -> Args<'a> {
        Args(Form::Owned(args))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Flat { ranges, .. } => ranges.len(),
            Form::Owned(args) => args.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of argument `i` in bytes.
    pub fn len_of(&self, i: usize) -> usize {
        match self.payload(i) {
            Payload::Within(_, _, len) => len,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Buffers(sga) => sga.len(),
        }
    }

    /// The bytes of argument `i`; copied only if they lie in several buffers.
    ///
    /// # Panics
    /// If there is no argument `i`.
    pub fn get(&self, i: usize) -> Cow<'a, [u8]> {
        match self.payload(i) {
            Payload::Within(buf, start, len) => Cow::Borrowed(&buf[start..start + len]),
            Payload::Bytes(bytes) => Cow::Borrowed(bytes),
            Payload::Buffers(sga) => match sga.segments() {
                [one] => Cow::Borrowed(&one[..]),
                _ => {
                    let mut bytes = vec![0; sga.len()];
                    sga.copy_to_slice(&mut bytes);
                    Cow::Owned(bytes)
                }
            },
        }
    }

    /// Where argument `i` is.
    ///
    /// # Panics
    /// If there is no argument `i`.
    pub fn payload(&self, i: usize) -> Payload<'a> {
        match self.0 {
            Form::Flat { base, ranges } => Payload::Within(base, ranges[i].0 as usize, ranges[i].1 as usize),
            Form::Owned(args) => match &args[i] {
                Arg::Bytes(bytes) => Payload::Bytes(bytes),
                Arg::Retained(sga) => Payload::Buffers(sga),
            },
        }
    }

    /// Whether argument `i` is `word`, in upper or lower case.
    pub fn is(&self, i: usize, word: &str) -> bool {
        self.get(i).eq_ignore_ascii_case(word.as_bytes())
    }

    /// A copy that outlives the received buffer: short arguments copied, long ones by reference.
    pub fn to_command(&self) -> Command {
        let own = |i| match self.payload(i) {
            Payload::Within(buf, start, len) if len >= RETAIN_MIN => {
                Arg::Retained(buf.slice(start..start + len).into())
            }
            Payload::Within(buf, start, len) => Arg::Bytes(buf[start..start + len].to_vec()),
            Payload::Bytes(bytes) => Arg::Bytes(bytes.to_vec()),
            Payload::Buffers(sga) => Arg::Retained(sga.clone()),
        };
        Command((0..self.len()).map(own).collect())
    }
}

/// A request kept for later: queued by `MULTI`.
#[derive(Clone)]
pub struct Command(pub Vec<Arg>);

impl Command {
    /// Its arguments.
    pub fn args(&self) -> Args<'_> {
        Args::owned(&self.0)
    }
}
