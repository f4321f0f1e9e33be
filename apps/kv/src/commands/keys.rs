//! The keyspace: which keys there are, and what becomes of them whole.

use super::{Cx, Fault, NO_SUCH_KEY, NOT_INTEGER, Outcome, SYNTAX, database, int, unknown_subcommand, wrong_number};
use crate::glob;
use crate::log::Part;
use crate::number::parse_i64;
use crate::resp::Args;
use crate::store::{Expiry, Key};

pub fn del(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let db = cx.db();
    let removed = (1..args.len()).filter(|&i| cx.state.store.remove(db, &args.get(i))).count();
    if removed > 0 {
        cx.changed();
    }
    cx.reply.count(removed);
    Ok(())
}

pub fn exists(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let db = cx.db();
    let there = (1..args.len()).filter(|&i| cx.state.store.read(db, &args.get(i)).is_some()).count();
    cx.reply.count(there);
    Ok(())
}

pub fn kind(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let db = cx.db();
    let there = cx.state.store.contains(db, &args.get(1));
    cx.reply.simple(if there { "string" } else { "none" });
    Ok(())
}

pub fn keys(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, pattern) = (cx.db(), args.get(1));
    let mut found: Vec<Key> = Vec::new();
    let mut slot = 0;
    while let Some((at, entry)) = cx.state.store.next_from(db, slot) {
        if glob::matches(&pattern, entry.key.as_bytes()) {
            found.push(entry.key.clone());
        }
        slot = at + 1;
    }
    cx.reply.array(found.len());
    for key in found {
        cx.reply.bulk(key.as_bytes());
    }
    Ok(())
}

pub fn scan(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let cursor = parse_i64(&args.get(1)).and_then(|c| u32::try_from(c).ok()).ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut strings) = (None, 10usize, true);
    let mut i = 2;
    while i < args.len() {
        if i + 1 == args.len() {
            return Err(SYNTAX.into());
        }
        if args.is(i, "MATCH") {
            pattern = Some(args.get(i + 1));
        } else if args.is(i, "COUNT") {
            let n = int(args, i + 1)?;
            count = usize::try_from(n).ok().filter(|n| *n > 0).ok_or(SYNTAX)?;
        } else if args.is(i, "TYPE") {
            strings = args.is(i + 1, "string");
        } else {
            return Err(SYNTAX.into());
        }
        i += 2;
    }
    let (db, mut slot, mut next, mut seen) = (cx.db(), cursor, 0, 0usize);
    let mut found: Vec<Key> = Vec::new();
    while let Some((at, entry)) = cx.state.store.next_from(db, slot) {
        if seen >= count {
            next = at;
            break;
        }
        seen += 1;
        if strings && pattern.as_ref().is_none_or(|p| glob::matches(p, entry.key.as_bytes())) {
            found.push(entry.key.clone());
        }
        slot = at + 1;
    }
    cx.reply.array(2);
    cx.reply.bulk(next.to_string().as_bytes());
    cx.reply.array(found.len());
    for key in found {
        cx.reply.bulk(key.as_bytes());
    }
    Ok(())
}

pub fn randomkey(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let db = cx.db();
    match cx.state.store.random_key(db) {
        Some(key) => cx.reply.bulk(key.as_bytes()),
        None => cx.reply.null(),
    }
    Ok(())
}

pub fn rename(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, from, to) = (cx.db(), args.get(1), args.get(2));
    if !cx.state.store.contains(db, &from) {
        return Err(NO_SUCH_KEY.into());
    }
    relocate(cx, db, &from, &to);
    cx.reply.ok();
    Ok(())
}

pub fn renamenx(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, from, to) = (cx.db(), args.get(1), args.get(2));
    if !cx.state.store.contains(db, &from) {
        return Err(NO_SUCH_KEY.into());
    }
    let free = !cx.state.store.contains(db, &to);
    if free {
        relocate(cx, db, &from, &to);
    }
    cx.reply.int(i64::from(free));
    Ok(())
}

/// Moves the value of a key that is there to another name, its expiry with it.
fn relocate(cx: &mut Cx<'_>, db: usize, from: &[u8], to: &[u8]) {
    if from == to {
        return;
    }
    if let Some(entry) = cx.state.store.take(db, from) {
        let expiry = entry.expires().map_or(Expiry::Never, Expiry::At);
        cx.state.store.set(db, to, entry.value, expiry);
        cx.changed();
    }
}

pub fn copy(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (from_db, from, to) = (cx.db(), args.get(1), args.get(2));
    let (mut to_db, mut replace, mut i) = (from_db, false, 3);
    while i < args.len() {
        if args.is(i, "REPLACE") {
            replace = true;
        } else if args.is(i, "DB") && i + 1 < args.len() {
            to_db = database(args, i + 1)?;
            i += 1;
        } else {
            return Err(SYNTAX.into());
        }
        i += 1;
    }
    if from_db == to_db && from == to {
        return Err("ERR source and destination objects are the same".into());
    }
    let entry = cx.state.store.peek(from_db, &from).map(|e| (e.value.clone(), e.expires()));
    let taken = cx.state.store.contains(to_db, &to);
    let copied = match entry {
        Some((value, expires)) if replace || !taken => {
            cx.state.store.set(to_db, &to, value, expires.map_or(Expiry::Never, Expiry::At));
            cx.changed();
            true
        }
        _ => false,
    };
    cx.reply.int(i64::from(copied));
    Ok(())
}

/// `MOVE key db`: to another database, unless the key is there already.
pub fn relocate_db(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (from_db, key, to_db) = (cx.db(), args.get(1), database(args, 2)?);
    if from_db == to_db {
        return Err("ERR source and destination objects are the same".into());
    }
    let free = !cx.state.store.contains(to_db, &key);
    let entry = if free { cx.state.store.take(from_db, &key) } else { None };
    cx.reply.int(i64::from(entry.is_some()));
    if let Some(entry) = entry {
        let expiry = entry.expires().map_or(Expiry::Never, Expiry::At);
        cx.state.store.set(to_db, &key, entry.value, expiry);
        cx.changed();
    }
    Ok(())
}

pub fn dbsize(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let len = cx.state.store.len(cx.db());
    cx.reply.count(len);
    Ok(())
}

fn flush_mode(args: &Args<'_>) -> Outcome {
    match args.len() {
        1 => Ok(()),
        2 if args.is(1, "ASYNC") || args.is(1, "SYNC") => Ok(()),
        _ => Err(SYNTAX.into()),
    }
}

pub fn flushdb(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    flush_mode(args)?;
    let db = cx.db();
    cx.state.store.flush(db);
    cx.changed_as(&[Part::Bytes(b"FLUSHDB")]);
    cx.reply.ok();
    Ok(())
}

pub fn flushall(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    flush_mode(args)?;
    for db in 0..crate::store::DATABASES {
        cx.state.store.flush(db);
    }
    cx.changed_as(&[Part::Bytes(b"FLUSHALL")]);
    cx.reply.ok();
    Ok(())
}

pub fn swapdb(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let bad = |which: &str| Fault::from(format!("ERR invalid {which} DB index"));
    let a = int(args, 1).map_err(|_| bad("first"))?;
    let b = int(args, 2).map_err(|_| bad("second"))?;
    let in_range = |n: i64| usize::try_from(n).ok().filter(|n| *n < crate::store::DATABASES);
    let (a, b) = (in_range(a).ok_or(super::BAD_DB)?, in_range(b).ok_or(super::BAD_DB)?);
    cx.state.store.swap(a, b);
    cx.changed();
    cx.reply.ok();
    Ok(())
}

pub fn object(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.is(1, "HELP") {
        cx.reply.array(3);
        for line in ["OBJECT <subcommand> [<arg> ...]. Subcommands are:", "ENCODING <key>", "IDLETIME <key>"] {
            cx.reply.simple(line);
        }
        return Ok(());
    }
    let known = ["ENCODING", "REFCOUNT", "IDLETIME", "FREQ"].iter().find(|s| args.is(1, s));
    let Some(sub) = known else { return Err(unknown_subcommand(args)) };
    if args.len() != 3 {
        return Err(wrong_number(&format!("object|{}", sub.to_lowercase())));
    }
    let (db, key) = (cx.db(), args.get(2));
    let Some(encoding) = cx.state.store.peek(db, &key).map(|e| e.value.encoding()) else {
        cx.reply.null();
        return Ok(());
    };
    match *sub {
        "ENCODING" => cx.reply.bulk(encoding.as_bytes()),
        "REFCOUNT" => cx.reply.int(1),
        "IDLETIME" => {
            let idle = cx.state.store.idle(db, &key).unwrap_or(0);
            cx.reply.int(idle as i64);
        }
        _ => {
            return Err("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
                 when switching between policies at runtime LRU and LFU data will take some time to adjust."
                .into());
        }
    }
    Ok(())
}

pub fn memory(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.is(1, "USAGE") {
        if args.len() < 3 {
            return Err(wrong_number("memory|usage"));
        }
        if args.len() != 3 {
            let samples = args.len() == 5 && args.is(3, "SAMPLES");
            if !samples || parse_i64(&args.get(4)).is_none() {
                return Err(if samples { NOT_INTEGER.into() } else { SYNTAX.into() });
            }
        }
        let db = cx.db();
        match cx.state.store.memory_of(db, &args.get(2)) {
            Some(bytes) => cx.reply.count(bytes),
            None => cx.reply.null(),
        }
        return Ok(());
    }
    if args.is(1, "DOCTOR") {
        let used = cx.state.store.used();
        cx.reply.verbatim(&format!("The data takes {used} bytes; INFO memory has the rest."));
        return Ok(());
    }
    Err(unknown_subcommand(args))
}
