//! A client that writes bytes and reads replies.

use crate::server::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request in the protocol's form.
pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Length of the reply at the start of `data`, if it is whole.
fn reply_len(data: &[u8]) -> Option<usize> {
    let line = data.windows(2).position(|w| w == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&data[1..line - 2]).ok()?.parse::<i64>().ok();
    match data[0] {
        b'$' | b'=' => match number()? {
            -1 => Some(line),
            n => (data.len() >= line + n as usize + 2).then_some(line + n as usize + 2),
        },
        b'*' | b'%' | b'~' => {
            let items = number()?.max(0) * if data[0] == b'%' { 2 } else { 1 };
            (0..items).try_fold(line, |at, _| Some(at + reply_len(data.get(at..).filter(|d| !d.is_empty())?)?))
        }
        _ => Some(line),
    }
}

impl Client {
    pub fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        Client { stream, buffer: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// The next whole reply; `None` if the connection ended.
    pub fn try_read(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(len) = reply_len(&self.buffer).filter(|_| !self.buffer.is_empty()) {
                return Some(self.buffer.drain(..len).collect());
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    pub fn read(&mut self) -> Vec<u8> {
        self.try_read().expect("the server replies")
    }

    /// One request and its reply, as bytes.
    pub fn call(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.send(&request(words));
        self.read()
    }

    /// One inline request and its reply, as text.
    pub fn run(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes());
        String::from_utf8_lossy(&self.read()).into_owned()
    }

    /// Whether the server has closed the connection.
    pub fn ended(&mut self) -> bool {
        self.try_read().is_none()
    }
}
