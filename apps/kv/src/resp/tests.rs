//! The parser beside a simple one that sees all bytes at once, under every way of cutting the bytes into buffers.

use super::*;
use crate::number::parse_i64;
use proptest::prelude::*;
use towpath_cbuf::{Memory, MemoryConfig, Sga};

/// Requests, then whether the rest is unfinished or wrong.
type Parsed = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// The protocol read in the plainest way.
fn reference(data: &[u8], limits: &Limits) -> Parsed {
    let (mut requests, mut at) = (Vec::new(), 0);
    loop {
        match reference_one(&data[at..], limits) {
            Ok(Some((words, used))) => {
                at += used;
                if !words.is_empty() {
                    requests.push(words);
                }
            }
            Ok(None) => return (requests, None),
            Err(error) => return (requests, Some(error)),
        }
    }
}

fn line_of(data: &[u8]) -> Option<Result<&[u8], ()>> {
    match data.iter().position(|&b| b == b'\r') {
        Some(at) if at < 32 => (data.len() >= at + 2).then_some(Ok(&data[..at])),
        _ if data.len() >= 32 => Some(Err(())),
        _ => None,
    }
}

#[allow(clippy::type_complexity, reason = "words and bytes used, if there is a whole request")]
fn reference_one(data: &[u8], limits: &Limits) -> Result<Option<(Vec<Vec<u8>>, usize)>, ProtocolError> {
    if data.is_empty() {
        return Ok(None);
    }
    if data[0] != b'*' {
        let Some(end) = data.iter().position(|&b| b == b'\n') else { return Ok(None) };
        let line = data[..end].strip_suffix(b"\r").unwrap_or(&data[..end]);
        return split_inline(line).map(|words| Some((words, end + 1))).ok_or(ProtocolError::Quotes);
    }
    let line = match line_of(data) {
        None => return Ok(None),
        Some(line) => line.map_err(|()| ProtocolError::MultibulkLength)?,
    };
    let count = parse_i64(&line[1..]).filter(|n| *n <= 1024 * 1024).ok_or(ProtocolError::MultibulkLength)?;
    let (mut words, mut at) = (Vec::new(), line.len() + 2);
    for _ in 0..count {
        let line = match line_of(&data[at..]) {
            None => return Ok(None),
            Some(Ok(line)) => line,
            Some(Err(())) if data[at] == b'$' => return Err(ProtocolError::BulkLength),
            Some(Err(())) => return Err(ProtocolError::Expected(data[at])),
        };
        match line.first() {
            Some(b'$') => {}
            other => return Err(ProtocolError::Expected(*other.unwrap_or(&b'\r'))),
        }
        let len = parse_i64(&line[1..]).and_then(|n| usize::try_from(n).ok());
        let len = len.filter(|n| *n <= limits.bulk_max).ok_or(ProtocolError::BulkLength)?;
        at += line.len() + 2;
        if data.len() < at + len + 2 {
            return Ok(None);
        }
        words.push(data[at..at + len].to_vec());
        at += len + 2;
    }
    Ok(Some((words, at)))
}

/// The parser under test, fed in pieces of the given sizes (the last one repeats).
fn parse(data: &[u8], cuts: &[usize], limits: &Limits) -> Parsed {
    let memory = Memory::new(MemoryConfig::default()).expect("memory for a test");
    let mut input = Input::new(memory.clone());
    let (mut requests, mut rest, mut i) = (Vec::new(), data, 0);
    while !rest.is_empty() {
        let n = cuts.get(i).or(cuts.last()).copied().unwrap_or(rest.len()).clamp(1, rest.len());
        i += 1;
        let piece = memory.copy_from(&rest[..n]).expect("memory for a test");
        rest = &rest[n..];
        input.feed(&Sga::from(piece)).expect("memory for a test");
        loop {
            match input.next(limits) {
                Ok(true) => {
                    let args = input.args();
                    requests.push((0..args.len()).map(|i| args.get(i).into_owned()).collect());
                }
                Ok(false) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
        input.settle().expect("memory for a test");
    }
    (requests, None)
}

/// Bytes that are mostly requests, with some damage.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..20),
        1 => prop::collection::vec(any::<u8>(), 2040..2060),
        1 => (3000usize..9000).prop_map(|n| vec![b'v'; n]),
    ];
    let request = prop::collection::vec(word, 0..5).prop_map(|words| {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(&word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    });
    let piece = prop_oneof![
        8 => request,
        2 => "(GET|set|\"a b\"|'x') [a-z]{0,9}\r?\n".prop_map(String::into_bytes),
        1 => "[*$][-0-9]{0,12}\r\n".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn parser_under_any_cut_agrees_with_the_plain_one(data in stream(), cuts in prop::collection::vec(1usize..5000, 0..12)) {
        let limits = Limits { bulk_max: 100_000, ..Limits::default() };
        prop_assert_eq!(parse(&data, &cuts, &limits), reference(&data, &limits));
    }

    #[test]
    fn parser_fed_byte_by_byte_agrees_with_the_plain_one(data in stream()) {
        let limits = Limits { bulk_max: 100_000, ..Limits::default() };
        prop_assert_eq!(parse(&data, &[1], &limits), reference(&data, &limits));
    }
}

#[test]
fn errors_read_as_those_of_redis() {
    let limits = Limits::default();
    let cases: [(&[u8], &str); 9] = [
        (b"*1\r\n$1073741824\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$+1\r\n", "Protocol error: invalid bulk length"),
        (b"*x\r\n", "Protocol error: invalid multibulk length"),
        (b"*2000000\r\n", "Protocol error: invalid multibulk length"),
        (b"*1\r\n:1\r\n", "Protocol error: expected '$', got ':'"),
        (b"get \"x\r\n", "Protocol error: unbalanced quotes in request"),
        (b"get \"x\"y\r\n", "Protocol error: unbalanced quotes in request"),
        (&[b'a'; 70_000], "Protocol error: too big inline request"),
    ];
    for (data, text) in cases {
        for cuts in [vec![], vec![1]] {
            let (requests, error) = parse(data, &cuts, &limits);
            assert!(requests.is_empty());
            assert_eq!(error.map(|e| e.to_string()).as_deref(), Some(text));
        }
    }
}

#[test]
fn client_before_login_may_ask_for_little_only() {
    let limits = Limits { unauthenticated: true, ..Limits::default() };
    assert_eq!(parse(b"*11\r\n", &[], &limits).1, Some(ProtocolError::UnauthenticatedMultibulk));
    assert_eq!(parse(b"*1\r\n$16385\r\n", &[], &limits).1, Some(ProtocolError::UnauthenticatedBulk));
}

#[test]
fn unfinished_request_beyond_the_query_limit_is_refused() {
    let limits = Limits { query_max: 10_000, ..Limits::default() };
    let mut data = b"*3\r\n$20000\r\n".to_vec();
    data.resize(15_000, b'x');
    assert_eq!(parse(&data, &[1000], &limits).1, Some(ProtocolError::QueryTooBig));
}

#[test]
fn long_argument_keeps_the_buffers_it_arrived_in() {
    let memory = Memory::new(MemoryConfig::default()).expect("memory for a test");
    let mut input = Input::new(memory.clone());
    let mut data = b"*1\r\n$10000\r\n".to_vec();
    data.resize(data.len() + 10_000, b'v');
    data.extend_from_slice(b"\r\n");
    let pieces: Vec<_> = data.chunks(4096).map(|c| memory.copy_from(c).expect("memory for a test")).collect();
    for piece in &pieces {
        input.feed(&Sga::from(piece.clone())).expect("memory for a test");
    }
    assert_eq!(input.next(&Limits::default()), Ok(true));
    let Payload::Buffers(sga) = input.args().payload(0) else { panic!("the argument was copied") };
    assert_eq!(sga.len(), 10_000);
    for (part, piece) in sga.segments().iter().zip(&pieces) {
        assert!(piece.as_ptr_range().contains(&part.as_ptr()), "a part lies outside the received buffer");
    }
}

#[test]
fn gathered_references_stay_in_their_place() {
    let memory = Memory::new(MemoryConfig::default()).expect("memory for a test");
    let mut gather = Gather::new(memory.clone());
    let large = memory.copy_from(&[b'L'; 5000]).expect("memory for a test");
    let mut wanted = Vec::new();
    gather.reference(large.clone());
    wanted.extend_from_slice(&large);
    for n in [0, 10, 4000, 5000, 70_000, 3] {
        gather.bytes(&vec![b'a'; n]);
        wanted.resize(wanted.len() + n, b'a');
        gather.reference(large.clone());
        wanted.extend_from_slice(&large);
    }
    assert_eq!(gather.len(), wanted.len());
    let sga = gather.take().expect("memory for a test");
    let mut bytes = vec![0; sga.len()];
    sga.copy_to_slice(&mut bytes);
    assert!(bytes == wanted);
    assert!(gather.is_empty());
}
