//! Keys and values as they are kept: integers as such, short strings packed into exact allocations, long ones as
//! references to the buffers they arrived in.

use crate::number::{IntText, parse_i64, text_len};
use crate::resp::{Args, Payload, RETAIN_MIN};
use smallvec::SmallVec;
use std::borrow::Cow;
use towpath_cbuf::{Buf, Error, Memory, Sga};

/// Longest key kept inside its entry, in bytes.
const INLINE_MAX: usize = 22;

/// A key: inside the entry when short, else in an allocation of its own.
#[derive(Clone)]
pub enum Key {
    /// Length and bytes.
    Inline(u8, [u8; INLINE_MAX]),
    /// On its own.
    Heap(Box<[u8]>),
}

impl Key {
    /// A copy of `bytes`.
    pub fn new(bytes: &[u8]) -> Key {
        if bytes.len() > INLINE_MAX {
            return Key::Heap(bytes.into());
        }
        let mut data = [0; INLINE_MAX];
        data[..bytes.len()].copy_from_slice(bytes);
        Key::Inline(bytes.len() as u8, data)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Key::Inline(len, data) => &data[..usize::from(*len)],
            Key::Heap(bytes) => bytes,
        }
    }

    /// Bytes outside the entry.
    pub fn footprint(&self) -> usize {
        match self {
            Key::Inline(..) => 0,
            Key::Heap(bytes) => allocation(bytes.len()),
        }
    }
}

/// What an allocation of `n` bytes takes, about.
fn allocation(n: usize) -> usize {
    if n == 0 { 0 } else { (n + 8).next_multiple_of(16) }
}

/// A long value: references to one or more buffers.
#[derive(Clone)]
pub struct Large {
    parts: SmallVec<[Buf; 1]>,
    len: usize,
    charge: usize,
}

impl Large {
    fn of(parts: SmallVec<[Buf; 1]>) -> Large {
        let len = parts.iter().map(|b| b.len()).sum();
        let charge = parts.iter().map(backing).sum();
        Large { parts, len, charge }
    }

    /// Its bytes, in order.
    pub fn parts(&self) -> &[Buf] {
        &self.parts
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Bytes of memory that a reference to a received buffer keeps from being used again.
fn backing(buf: &Buf) -> usize {
    buf.footprint()
}

/// A stored string.
#[derive(Clone)]
pub enum Value {
    /// The text of a 64-bit integer.
    Int(i64),
    /// Under [`RETAIN_MIN`] bytes, in an allocation of exactly its size.
    Packed(Box<[u8]>),
    /// Being changed in place by `APPEND` or `SETRANGE`.
    Raw(Vec<u8>),
    /// [`RETAIN_MIN`] bytes or more, in buffers.
    Large(Box<Large>),
}

impl Value {
    /// A value from bytes that are not in a buffer.
    ///
    /// # Errors
    /// No memory for a long one.
    pub fn from_bytes(bytes: &[u8], memory: &Memory) -> Result<Value, Error> {
        if bytes.len() >= RETAIN_MIN {
            return Ok(Value::Large(Box::new(Large::of(SmallVec::from_buf([memory.copy_from(bytes)?])))));
        }
        Ok(Value::short(bytes))
    }

    fn short(bytes: &[u8]) -> Value {
        match bytes.first() {
            Some(b'-' | b'0'..=b'9') if bytes.len() <= 20 => {
                parse_i64(bytes).map_or_else(|| Value::Packed(bytes.into()), Value::Int)
            }
            _ => Value::Packed(bytes.into()),
        }
    }

    /// Argument `i` as a value. A long one keeps its buffers, unless that would hold more than twice its size: then it
    /// is copied once, so that a slice never pins a buffer much larger than itself.
    ///
    /// # Errors
    /// No memory for that copy.
    pub fn from_arg(args: &Args<'_>, i: usize, memory: &Memory) -> Result<Value, Error> {
        match args.payload(i) {
            Payload::Within(buf, start, len) if len >= RETAIN_MIN && 2 * len >= backing(buf) => {
                Ok(Value::Large(Box::new(Large::of(SmallVec::from_buf([buf.slice(start..start + len)])))))
            }
            Payload::Within(buf, start, len) => Value::from_bytes(&buf[start..start + len], memory),
            Payload::Bytes(bytes) => Value::from_bytes(bytes, memory),
            Payload::Buffers(sga) => Value::from_buffers(sga, memory),
        }
    }

    fn from_buffers(sga: &Sga, memory: &Memory) -> Result<Value, Error> {
        let pinned: usize = sga.segments().iter().map(backing).sum();
        if sga.len() >= RETAIN_MIN && 2 * sga.len() >= pinned {
            return Ok(Value::Large(Box::new(Large::of(sga.segments().iter().cloned().collect()))));
        }
        let whole = sga.to_contiguous(memory)?;
        if whole.len() < RETAIN_MIN {
            return Ok(Value::short(&whole));
        }
        if 2 * whole.len() >= backing(&whole) {
            return Ok(Value::Large(Box::new(Large::of(SmallVec::from_buf([whole])))));
        }
        Value::from_bytes(&whole, memory)
    }

    /// Length of the string in bytes.
    pub fn len(&self) -> usize {
        match self {
            Value::Int(n) => text_len(*n),
            Value::Packed(bytes) => bytes.len(),
            Value::Raw(bytes) => bytes.len(),
            Value::Large(large) => large.len(),
        }
    }

    /// Whether the string is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes outside the entry, whole buffers counted whole.
    pub fn footprint(&self) -> usize {
        match self {
            Value::Int(_) => 0,
            Value::Packed(bytes) => allocation(bytes.len()),
            Value::Raw(bytes) => allocation(bytes.capacity()),
            Value::Large(large) => large.charge + size_of::<Large>(),
        }
    }

    /// The bytes; copied if they are an integer or lie in several buffers.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Value::Int(n) => Cow::Owned(IntText::new(*n).as_bytes().to_vec()),
            Value::Packed(bytes) => Cow::Borrowed(bytes),
            Value::Raw(bytes) => Cow::Borrowed(bytes),
            Value::Large(large) => match large.parts() {
                [one] => Cow::Borrowed(one),
                parts => Cow::Owned(parts.iter().flat_map(|b| b.iter().copied()).collect()),
            },
        }
    }

    /// The value as an integer, if its text is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            other if other.len() <= 20 => parse_i64(&other.bytes()),
            _ => None,
        }
    }

    /// The bytes for changing in place; copies a value that is not changed for the first time.
    pub fn make_raw(&mut self) -> &mut Vec<u8> {
        if !matches!(self, Value::Raw(_)) {
            *self = Value::Raw(self.bytes().into_owned());
        }
        match self {
            Value::Raw(bytes) => bytes,
            _ => unreachable!("made raw above"),
        }
    }

    /// Before a long value that was changed in place is sent: moves it into a buffer, so that replies can refer to it.
    pub fn settle(&mut self, memory: &Memory) {
        if let Value::Raw(bytes) = self
            && bytes.len() >= RETAIN_MIN
            && let Ok(value) = Value::from_bytes(bytes, memory)
        {
            *self = value;
        }
    }

    /// Overwrites in place if old and new value are packed and of one size: no allocation then.
    pub fn overwrite(&mut self, bytes: &[u8]) -> bool {
        match self {
            Value::Packed(old) if old.len() == bytes.len() && !matches!(bytes.first(), Some(b'-' | b'0'..=b'9')) => {
                old.copy_from_slice(bytes);
                true
            }
            _ => false,
        }
    }

    /// The name `OBJECT ENCODING` gives it.
    pub fn encoding(&self) -> &'static str {
        match self {
            Value::Int(_) => "int",
            Value::Packed(bytes) if bytes.len() <= 44 => "embstr",
            _ => "raw",
        }
    }
}
