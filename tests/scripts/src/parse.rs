//! From text to what happens when.

/// When something happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum When {
    /// At a time, or between two, in nanoseconds after the script's start or, if relative, after the event before.
    At {
        /// Counted from the event before.
        relative: bool,
        /// From when.
        from: u64,
        /// Until when.
        to: u64,
    },
    /// At any time after the event before.
    Any,
}

/// Timestamps, selective acknowledgements and so on, as written.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Written {
    /// `mss n`
    pub mss: Option<u16>,
    /// `wscale n`
    pub scale: Option<u8>,
    /// `sackOK`
    pub sack_permitted: bool,
    /// `TS val v ecr e`
    pub timestamps: Option<(u32, u32)>,
    /// `sack a:b c:d`
    pub sack: Vec<(u32, u32)>,
}

/// A TCP packet.
#[derive(Clone, PartialEq, Debug)]
pub struct Packet {
    /// The two ECN bits, if given.
    pub ecn: Option<u8>,
    /// Flags as in the header.
    pub flags: u8,
    /// First sequence number.
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Acknowledgement.
    pub ack: Option<u32>,
    /// The window field.
    pub win: Option<u16>,
    /// Options; `None` if they do not matter.
    pub options: Option<Written>,
}

/// What happens.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// A packet arrives.
    In(Packet),
    /// A packet must be sent.
    Out(Packet),
    /// An ICMP error about a packet from `seq` arrives.
    IcmpIn {
        /// `port_unreachable`, `host_unreachable`, `frag_needed` or `packet_too_big`.
        kind: String,
        /// The MTU, for the last two.
        mtu: u32,
        /// The sequence number it quotes.
        seq: u32,
    },
    /// A call: its name, its arguments, its result, and the error's name if it is -1.
    Call {
        /// The function.
        name: String,
        /// Arguments as written.
        args: Vec<String>,
        /// The value it must return.
        result: i64,
        /// The error it must report.
        errno: Option<String>,
    },
    /// A field of `tcp_info` must stand in a relation to a number.
    Assert {
        /// `tcpi_...`
        field: String,
        /// `==`, `!=`, `<`, `<=`, `>`, `>=`.
        relation: String,
        /// The number.
        value: i64,
    },
}

/// A whole script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// `--name=value` lines.
    pub settings: Vec<(String, String)>,
    /// Line number, time and event.
    pub items: Vec<(usize, When, Item)>,
}

/// Reads a script.
pub fn parse(text: &str) -> Result<Script, String> {
    let mut script = Script::default();
    let mut comment = false;
    for (n, raw) in text.lines().enumerate() {
        let line = strip(raw, &mut comment);
        let line = line.trim();
        if line.is_empty() || line.starts_with('`') {
            continue;
        }
        if let Some(setting) = line.strip_prefix("--") {
            let (name, value) = setting.split_once('=').ok_or(format!("line {}: --name=value", n + 1))?;
            script.settings.push((name.trim().to_string(), value.trim().to_string()));
            continue;
        }
        let (when, rest) = time(line).map_err(|e| format!("line {}: {e}: {raw}", n + 1))?;
        let item = item(rest.trim()).map_err(|e| format!("line {}: {e}: {raw}", n + 1))?;
        script.items.push((n + 1, when, item));
    }
    Ok(script)
}

fn strip(raw: &str, comment: &mut bool) -> String {
    let mut out = String::new();
    let mut rest = raw;
    loop {
        if *comment {
            let Some(end) = rest.find("*/") else { return out };
            rest = &rest[end + 2..];
            *comment = false;
        }
        let (line, block) = (rest.find("//"), rest.find("/*"));
        match (line, block) {
            (Some(l), b) if b.is_none_or(|b| l < b) => {
                out.push_str(&rest[..l]);
                return out;
            }
            (_, Some(b)) => {
                out.push_str(&rest[..b]);
                rest = &rest[b + 2..];
                *comment = true;
            }
            _ => {
                // A line that starts with # is a comment as well.
                let hash = rest.trim_start().starts_with('#') && out.is_empty();
                if !hash {
                    out.push_str(rest);
                }
                return out;
            }
        }
    }
}

fn nanos(text: &str) -> Result<u64, String> {
    let value: f64 = text.parse().map_err(|_| format!("not a time: {text}"))?;
    Ok((value * 1e9).round() as u64)
}

fn time(line: &str) -> Result<(When, &str), String> {
    let end = line.find(|c: char| c.is_whitespace()).ok_or("an event must follow its time")?;
    let (word, rest) = line.split_at(end);
    if word == "*" {
        return Ok((When::Any, rest));
    }
    let relative = word.starts_with('+');
    let (from, to) = match word.split_once('~') {
        Some((from, to)) => (nanos(from.trim_start_matches('+'))?, nanos(to.trim_start_matches('+'))?),
        None => {
            let at = nanos(word.trim_start_matches('+'))?;
            (at, at)
        }
    };
    Ok((When::At { relative, from, to }, rest))
}

fn item(text: &str) -> Result<Item, String> {
    if let Some(code) = text.strip_prefix("%{") {
        return assertion(code.trim_end_matches("}%").trim());
    }
    if let Some(rest) = text.strip_prefix('<') {
        let rest = rest.trim();
        return match rest.strip_prefix("icmp") {
            Some(icmp) => icmp_in(icmp.trim()),
            None => packet(rest).map(Item::In),
        };
    }
    if let Some(rest) = text.strip_prefix('>') {
        return packet(rest.trim()).map(Item::Out);
    }
    call(text)
}

fn assertion(code: &str) -> Result<Item, String> {
    let words: Vec<&str> = code.split_whitespace().collect();
    match words[..] {
        ["assert", field, relation, value] => Ok(Item::Assert {
            field: field.to_string(),
            relation: relation.to_string(),
            value: value.parse().map_err(|_| "not a number")?,
        }),
        _ => Err("assert field relation number".into()),
    }
}

fn icmp_in(text: &str) -> Result<Item, String> {
    let (head, quoted) = text.split_once('[').ok_or("icmp needs the quoted packet in []")?;
    let words: Vec<&str> = head.split_whitespace().collect();
    let kind = words.iter().find(|w| **w != "unreachable").ok_or("which error?")?.to_string();
    let mtu = words.iter().position(|w| *w == "mtu").and_then(|i| words.get(i + 1)?.parse().ok()).unwrap_or(0);
    let range = quoted.trim_end_matches(']').split_whitespace().last().ok_or("an empty quote")?;
    let seq = range.split(':').next().and_then(|s| s.parse().ok()).ok_or("a sequence number is quoted")?;
    Ok(Item::IcmpIn { kind, mtu, seq })
}

fn packet(text: &str) -> Result<Packet, String> {
    let (text, options) = match text.split_once('<') {
        Some((head, options)) => (head, Some(options.trim_end().trim_end_matches('>').trim())),
        None => (text, None),
    };
    let mut words = text.split_whitespace().peekable();
    let mut ecn = None;
    if let Some(word) = words.peek().filter(|w| w.starts_with('[')) {
        ecn = Some(match *word {
            "[noecn]" => 0,
            "[ect1]" => 1,
            "[ect0]" => 2,
            "[ce]" => 3,
            other => return Err(format!("not an ECN mark: {other}")),
        });
        words.next();
    }
    let mut flags = 0;
    for c in words.next().ok_or("flags")?.chars() {
        flags |= match c {
            'F' => 1,
            'S' => 2,
            'R' => 4,
            'P' => 8,
            '.' => 16,
            'U' => 32,
            'E' => 64,
            'W' => 128,
            '-' => 0,
            other => return Err(format!("not a flag: {other}")),
        };
    }
    let range = words.next().ok_or("seq:end(len)")?;
    let (seq, rest) = range.split_once(':').ok_or("seq:end(len)")?;
    let (end, len) = rest.trim_end_matches(')').split_once('(').ok_or("seq:end(len)")?;
    let number = |s: &str| s.parse::<u32>().map_err(|_| format!("not a number: {s}"));
    let (seq, end, len) = (number(seq)?, number(end)?, number(len)?);
    if seq.wrapping_add(len) != end {
        return Err(format!("{seq} + {len} is not {end}"));
    }
    let (mut ack, mut win) = (None, None);
    while let Some(word) = words.next() {
        let value = number(words.next().ok_or(format!("{word} needs a number"))?)?;
        match word {
            "ack" => ack = Some(value),
            "win" => win = Some(value as u16),
            "urg" => {}
            other => return Err(format!("not understood: {other}")),
        }
    }
    let options = match options {
        None | Some("...") => None,
        Some(list) => Some(written(list)?),
    };
    Ok(Packet { ecn, flags, seq, len, ack, win, options })
}

fn written(list: &str) -> Result<Written, String> {
    let mut out = Written::default();
    for option in list.split(',').map(str::trim) {
        let words: Vec<&str> = option.split_whitespace().collect();
        let number = |s: &str| s.parse::<u32>().map_err(|_| format!("not a number: {s}"));
        match words[..] {
            [] | ["nop"] | ["eol"] => {}
            ["mss", n] => out.mss = Some(number(n)? as u16),
            ["wscale", n] => out.scale = Some(number(n)? as u8),
            ["sackOK"] => out.sack_permitted = true,
            ["TS", "val", value, "ecr", echo] => out.timestamps = Some((number(value)?, number(echo)?)),
            ["sack", ref blocks @ ..] => {
                for block in blocks {
                    let (left, right) = block.split_once(':').ok_or("sack left:right")?;
                    out.sack.push((number(left)?, number(right)?));
                }
            }
            _ => return Err(format!("not an option: {option}")),
        }
    }
    Ok(out)
}

fn call(text: &str) -> Result<Item, String> {
    let (name, rest) = text.split_once('(').ok_or("not a call")?;
    let end = rest.rfind(") =").ok_or("a call needs a result")?;
    let (args, result) = (&rest[..end], rest[end + 3..].trim());
    let mut words = result.split_whitespace();
    let value = words.next().ok_or("a result")?.parse().map_err(|_| "the result is no number")?;
    let errno = words.next().filter(|w| w.starts_with('E')).map(str::to_string);
    let args = args.split(',').map(|a| a.trim().to_string()).collect();
    Ok(Item::Call { name: name.trim().to_string(), args, result: value, errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_with_every_kind_of_line_is_read() {
        let text = "
            --mtu=1400
            /* two
               lines */
            0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3 // a comment
            +.1~+.2 < [ce] SEW 0:0(0) win 1000 <mss 1460,sackOK,nop,wscale 7>
            * > P. 1:11(10) ack 1 win 5 <...>
            +0 read(3, ..., 100) = -1 EAGAIN (Resource temporarily unavailable)
            +0 < icmp unreachable frag_needed mtu 1200 [1:1001(1000)]
            +0 %{ assert tcpi_snd_cwnd == 10 }%";
        let script = parse(text).expect("a good script");
        assert_eq!(script.settings, [("mtu".to_string(), "1400".to_string())]);
        assert_eq!(script.items.len(), 6);
        let (_, when, Item::In(packet)) = &script.items[1] else { panic!("{:?}", script.items[1]) };
        assert_eq!(*when, When::At { relative: true, from: 100_000_000, to: 200_000_000 });
        assert_eq!((packet.flags, packet.ecn), (2 | 64 | 128, Some(3)));
        assert_eq!(packet.options.as_ref().map(|o| (o.mss, o.scale)), Some((Some(1460), Some(7))));
    }

    #[test]
    fn script_with_a_mistake_names_its_line() {
        for (text, line) in [("+0 < S 0:5(0) win 1", "line 1"), ("\n+0 foo", "line 2"), ("+x < S 0:0(0)", "line 1")] {
            let error = parse(text).expect_err("a bad script");
            assert!(error.starts_with(line), "{error}");
        }
    }
}
