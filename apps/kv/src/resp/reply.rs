//! Replies in RESP2 or RESP3.

use super::Gather;
use crate::number::IntText;
use crate::store::Value;

/// The version a client speaks; chosen by `HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// Version 2, until the client says otherwise.
    #[default]
    Resp2,
    /// Version 3.
    Resp3,
}

/// Writes replies of one client.
pub struct Reply<'a> {
    /// Where they go.
    pub out: &'a mut Gather,
    /// How they are written.
    pub protocol: Protocol,
}

impl Reply<'_> {
    /// `+OK`.
    pub fn ok(&mut self) {
        self.out.bytes(b"+OK\r\n");
    }

    /// A status line; `text` holds no line end.
    pub fn simple(&mut self, text: &str) {
        self.out.byte(b'+');
        self.out.bytes(text.as_bytes());
        self.out.bytes(b"\r\n");
    }

    /// An error line, its code included (`ERR ...`); line ends in it become blanks.
    pub fn error(&mut self, text: &str) {
        self.out.byte(b'-');
        if text.contains(['\r', '\n']) {
            self.out.bytes(text.replace(['\r', '\n'], " ").as_bytes());
        } else {
            self.out.bytes(text.as_bytes());
        }
        self.out.bytes(b"\r\n");
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        self.prefixed(b':', value);
    }

    /// A count.
    pub fn count(&mut self, value: usize) {
        self.int(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// A string of any bytes, copied.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.prefixed(b'$', bytes.len() as i64);
        self.out.bytes(bytes);
        self.out.bytes(b"\r\n");
    }

    /// A text for people: RESP3 clients show it as it is.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.prefixed(b'=', text.len() as i64 + 4);
                self.out.bytes(b"txt:");
                self.out.bytes(text.as_bytes());
                self.out.bytes(b"\r\n");
            }
        }
    }

    /// A stored value: small ones copied, large ones by reference.
    pub fn value(&mut self, value: &Value) {
        match value {
            Value::Int(n) => self.bulk(IntText::new(*n).as_bytes()),
            Value::Large(large) => {
                self.prefixed(b'$', large.len() as i64);
                for part in large.parts() {
                    self.out.reference(part.clone());
                }
                self.out.bytes(b"\r\n");
            }
            Value::Packed(bytes) => self.bulk(bytes),
            Value::Raw(bytes) => self.bulk(bytes),
        }
    }

    /// Nothing is there.
    pub fn null(&mut self) {
        self.out.bytes(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Nothing is there, where an array would be.
    pub fn null_array(&mut self) {
        self.out.bytes(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array of `n` replies.
    pub fn array(&mut self, n: usize) {
        self.prefixed(b'*', n as i64);
    }

    /// The head of a map of `n` pairs; in RESP2 an array of twice as many.
    pub fn map(&mut self, n: usize) {
        match self.protocol {
            Protocol::Resp2 => self.prefixed(b'*', 2 * n as i64),
            Protocol::Resp3 => self.prefixed(b'%', n as i64),
        }
    }

    /// The head of a set of `n` replies; in RESP2 an array.
    pub fn set(&mut self, n: usize) {
        self.prefixed(if self.protocol == Protocol::Resp3 { b'~' } else { b'*' }, n as i64);
    }

    fn prefixed(&mut self, mark: u8, value: i64) {
        if (0..10).contains(&value) {
            self.out.bytes(&[mark, b'0' + value as u8, b'\r', b'\n']);
            return;
        }
        let mut line = [0u8; 24];
        let text = IntText::new(value);
        let digits = text.as_bytes();
        line[0] = mark;
        line[1..1 + digits.len()].copy_from_slice(digits);
        line[1 + digits.len()..3 + digits.len()].copy_from_slice(b"\r\n");
        self.out.bytes(&line[..3 + digits.len()]);
    }
}
