//! Strings: `SET` and its relatives.

use super::expire::{self, Unit};
use super::{Cx, Outcome, SYNTAX, int, reply_value, wrong_number};
use crate::log::Part;
use crate::resp::{Args, RETAIN_MIN};
use crate::store::{Expiry, Value};

const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
const OUT_OF_RANGE: &str = "ERR offset is out of range";

pub fn get(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    reply_value(cx, &args.get(1));
    Ok(())
}

/// What the options of `SET` ask for.
#[derive(Default)]
struct SetOptions {
    only_new: bool,
    only_old: bool,
    get: bool,
    keep: bool,
    when: Option<u64>,
}

fn set_options(cx: &Cx<'_>, args: &Args<'_>) -> Result<SetOptions, super::Fault> {
    let mut options = SetOptions::default();
    let mut i = 3;
    while i < args.len() {
        let timed = options.when.is_some() || options.keep;
        if args.is(i, "NX") && !options.only_old {
            options.only_new = true;
        } else if args.is(i, "XX") && !options.only_new {
            options.only_old = true;
        } else if args.is(i, "GET") {
            options.get = true;
        } else if args.is(i, "KEEPTTL") && options.when.is_none() {
            options.keep = true;
        } else if let Some(unit) = Unit::parse(&args.get(i))
            && !timed
            && i + 1 < args.len()
        {
            options.when = Some(expire::deadline(cx.now(), int(args, i + 1)?, unit, "set")?);
            i += 1;
        } else {
            return Err(SYNTAX.into());
        }
        i += 1;
    }
    Ok(options)
}

pub fn set(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    if args.len() == 3 {
        store(cx, args, 2, &key, Expiry::Never)?;
        cx.changed();
        cx.reply.ok();
        return Ok(());
    }
    let options = set_options(cx, args)?;
    let there = cx.state.store.contains(db, &key);
    if options.get {
        reply_value(cx, &key);
    }
    if (options.only_new && there) || (options.only_old && !there) {
        if !options.get {
            cx.reply.null();
        }
        return Ok(());
    }
    let expiry = match options.when {
        Some(when) => Expiry::At(when),
        None if options.keep => Expiry::Keep,
        None => Expiry::Never,
    };
    store(cx, args, 2, &key, expiry)?;
    log_set(cx, args, 1, 2, expiry);
    if !options.get {
        cx.reply.ok();
    }
    Ok(())
}

/// Sets `key` to argument `value`.
fn store(cx: &mut Cx<'_>, args: &Args<'_>, value: usize, key: &[u8], expiry: Expiry) -> Outcome {
    let db = cx.db();
    if expiry == Expiry::Never && args.len_of(value) < RETAIN_MIN && cx.state.store.overwrite(db, key, &args.get(value))
    {
        return Ok(());
    }
    let value = Value::from_arg(args, value, &cx.state.memory)?;
    cx.state.store.set(db, key, value, expiry);
    Ok(())
}

/// Logs a `SET` with its expiry as a time.
fn log_set(cx: &mut Cx<'_>, args: &Args<'_>, key: usize, value: usize, expiry: Expiry) {
    let (set, key, value) = (Part::Bytes(b"SET"), Part::Arg(args, key), Part::Arg(args, value));
    match expiry {
        Expiry::Never => cx.changed_as(&[set, key, value]),
        Expiry::Keep => cx.changed_as(&[set, key, value, Part::Bytes(b"KEEPTTL")]),
        Expiry::At(when) => cx.changed_as(&[set, key, value, Part::Bytes(b"PXAT"), Part::Int(when as i64)]),
    }
}

pub fn setnx(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    let there = cx.state.store.contains(db, &key);
    if !there {
        store(cx, args, 2, &key, Expiry::Never)?;
        cx.changed();
    }
    cx.reply.int(i64::from(!there));
    Ok(())
}

pub fn setex(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    timed_set(cx, args, Unit::SECONDS, "setex")
}

pub fn psetex(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    timed_set(cx, args, Unit::MILLIS, "psetex")
}

fn timed_set(cx: &mut Cx<'_>, args: &Args<'_>, unit: Unit, name: &str) -> Outcome {
    let when = expire::deadline(cx.now(), int(args, 2)?, unit, name)?;
    store(cx, args, 3, &args.get(1), Expiry::At(when))?;
    log_set(cx, args, 1, 3, Expiry::At(when));
    cx.reply.ok();
    Ok(())
}

pub fn getset(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let key = args.get(1);
    reply_value(cx, &key);
    store(cx, args, 2, &key, Expiry::Never)?;
    log_set(cx, args, 1, 2, Expiry::Never);
    Ok(())
}

pub fn getdel(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    reply_value(cx, &key);
    if cx.state.store.remove(db, &key) {
        cx.changed_as(&[Part::Bytes(b"DEL"), Part::Bytes(&key)]);
    }
    Ok(())
}

pub fn getex(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    let mut when = None;
    match args.len() {
        2 => {}
        3 if args.is(2, "PERSIST") => when = Some(None),
        4 => {
            let unit = Unit::parse(&args.get(2)).ok_or(SYNTAX)?;
            when = Some(Some(expire::deadline(cx.now(), int(args, 3)?, unit, "getex")?));
        }
        _ => return Err(SYNTAX.into()),
    }
    reply_value(cx, &key);
    let Some(when) = when else { return Ok(()) };
    let Some(had) = cx.state.store.peek(db, &key).map(|e| e.expires()) else { return Ok(()) };
    match when {
        Some(at) if at <= cx.now() => {
            cx.state.store.remove(db, &key);
            cx.changed_as(&[Part::Bytes(b"DEL"), Part::Bytes(&key)]);
        }
        Some(at) => {
            cx.state.store.end(db, &key, when);
            cx.changed_as(&[Part::Bytes(b"PEXPIREAT"), Part::Bytes(&key), Part::Int(at as i64)]);
        }
        None if had.is_some() => {
            cx.state.store.end(db, &key, None);
            cx.changed_as(&[Part::Bytes(b"PERSIST"), Part::Bytes(&key)]);
        }
        None => {}
    }
    Ok(())
}

pub fn mget(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    cx.reply.array(args.len() - 1);
    for i in 1..args.len() {
        reply_value(cx, &args.get(i));
    }
    Ok(())
}

pub fn mset(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.len().is_multiple_of(2) {
        return Err(wrong_number("mset"));
    }
    set_all(cx, args)?;
    cx.reply.ok();
    Ok(())
}

pub fn msetnx(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.len().is_multiple_of(2) {
        return Err(wrong_number("msetnx"));
    }
    let db = cx.db();
    let any = (1..args.len()).step_by(2).any(|i| cx.state.store.contains(db, &args.get(i)));
    if !any {
        set_all(cx, args)?;
    }
    cx.reply.int(i64::from(!any));
    Ok(())
}

/// Sets every pair, or none if there is no memory for one of the values.
fn set_all(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let mut values = Vec::with_capacity(args.len() / 2);
    for i in (2..args.len()).step_by(2) {
        values.push(Value::from_arg(args, i, &cx.state.memory)?);
    }
    let db = cx.db();
    for (pair, value) in values.into_iter().enumerate() {
        cx.state.store.set(db, &args.get(1 + 2 * pair), value, Expiry::Never);
    }
    cx.changed();
    Ok(())
}

pub fn strlen(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let db = cx.db();
    let len = cx.state.store.read(db, &args.get(1)).map_or(0, |e| e.value.len());
    cx.reply.count(len);
    Ok(())
}

pub fn append(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key, tail) = (cx.db(), args.get(1), args.get(2));
    let most = cx.state.config.proto_max_bulk_len as usize;
    let before = cx.state.store.peek(db, &key).map(|e| e.value.len());
    if before.unwrap_or(0) + tail.len() > most {
        return Err(TOO_LONG.into());
    }
    let len = match before {
        Some(_) => cx.state.store.update(db, &key, |value| {
            let bytes = value.make_raw();
            bytes.extend_from_slice(&tail);
            bytes.len()
        }),
        None => {
            store(cx, args, 2, &key, Expiry::Never)?;
            Some(tail.len())
        }
    };
    cx.changed();
    cx.reply.count(len.unwrap_or(0));
    Ok(())
}

pub fn setrange(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key, patch) = (cx.db(), args.get(1), args.get(3));
    let offset = usize::try_from(int(args, 2)?).map_err(|_| OUT_OF_RANGE)?;
    let before = cx.state.store.peek(db, &key).map(|e| e.value.len());
    if patch.is_empty() {
        cx.reply.count(before.unwrap_or(0));
        return Ok(());
    }
    let end = offset.checked_add(patch.len()).ok_or(TOO_LONG)?;
    if end > cx.state.config.proto_max_bulk_len as usize {
        return Err(TOO_LONG.into());
    }
    if before.is_none() {
        cx.state.store.set(db, &key, Value::Raw(Vec::new()), Expiry::Never);
    }
    let len = cx.state.store.update(db, &key, |value| {
        let bytes = value.make_raw();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(&patch);
        bytes.len()
    });
    cx.changed();
    cx.reply.count(len.unwrap_or(0));
    Ok(())
}

pub fn getrange(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (start, end) = (int(args, 2)?, int(args, 3)?);
    let db = cx.db();
    let Some(entry) = cx.state.store.read(db, &args.get(1)) else {
        cx.reply.bulk(b"");
        return Ok(());
    };
    let len = entry.value.len() as i64;
    let from_end = |i: i64| if i < 0 { (len + i).max(0) } else { i };
    let both_negative_and_crossed = start < 0 && end < 0 && start > end;
    let (first, last) = (from_end(start), from_end(end).min(len - 1));
    if both_negative_and_crossed || first > last || len == 0 {
        cx.reply.bulk(b"");
        return Ok(());
    }
    let (first, last) = (first as usize, last as usize);
    cx.reply.bulk(&entry.value.bytes()[first..=last]);
    Ok(())
}
