//! When keys end.

use super::{Cx, Fault, Outcome, int};
use crate::log::Part;
use crate::resp::Args;

/// How a time is given.
#[derive(Clone, Copy)]
pub struct Unit {
    millis: bool,
    absolute: bool,
}

impl Unit {
    /// From now, in seconds.
    pub const SECONDS: Unit = Unit { millis: false, absolute: false };
    /// From now, in milliseconds.
    pub const MILLIS: Unit = Unit { millis: true, absolute: false };

    /// The unit of an option of `SET` or `GETEX`.
    pub fn parse(word: &[u8]) -> Option<Unit> {
        match word.to_ascii_uppercase().as_slice() {
            b"EX" => Some(Unit::SECONDS),
            b"PX" => Some(Unit::MILLIS),
            b"EXAT" => Some(Unit { millis: false, absolute: true }),
            b"PXAT" => Some(Unit { millis: true, absolute: true }),
            _ => None,
        }
    }
}

fn invalid(name: &str) -> Fault {
    format!("ERR invalid expire time in '{name}' command").into()
}

/// The moment (Unix milliseconds) that `amount` means, which must be positive as given.
pub fn deadline(now: u64, amount: i64, unit: Unit, name: &str) -> Result<u64, Fault> {
    if amount <= 0 {
        return Err(invalid(name));
    }
    moment(now, amount, unit, name).map(|when| when.max(1) as u64)
}

/// The moment that `amount` means; it may lie in the past.
fn moment(now: u64, amount: i64, unit: Unit, name: &str) -> Result<i64, Fault> {
    let millis = if unit.millis { Some(amount) } else { amount.checked_mul(1000) }.ok_or_else(|| invalid(name))?;
    let base = if unit.absolute { 0 } else { now as i64 };
    base.checked_add(millis).ok_or_else(|| invalid(name))
}

pub fn expire(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    expire_as(cx, args, Unit::SECONDS, "expire")
}

pub fn pexpire(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    expire_as(cx, args, Unit::MILLIS, "pexpire")
}

pub fn expireat(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    expire_as(cx, args, Unit { millis: false, absolute: true }, "expireat")
}

pub fn pexpireat(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    expire_as(cx, args, Unit { millis: true, absolute: true }, "pexpireat")
}

/// The condition options of `EXPIRE`.
#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

fn conditions(args: &Args<'_>) -> Result<Conditions, Fault> {
    let mut c = Conditions::default();
    for i in 3..args.len() {
        if args.is(i, "NX") {
            c.nx = true;
        } else if args.is(i, "XX") {
            c.xx = true;
        } else if args.is(i, "GT") {
            c.gt = true;
        } else if args.is(i, "LT") {
            c.lt = true;
        } else {
            return Err(format!("ERR Unsupported option {}", String::from_utf8_lossy(&args.get(i))).into());
        }
    }
    if c.nx && (c.xx || c.gt || c.lt) {
        return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
    }
    if c.gt && c.lt {
        return Err("ERR GT and LT options at the same time are not compatible".into());
    }
    Ok(c)
}

fn expire_as(cx: &mut Cx<'_>, args: &Args<'_>, unit: Unit, name: &str) -> Outcome {
    let c = conditions(args)?;
    let when = moment(cx.now(), int(args, 2)?, unit, name)?;
    let (db, key) = (cx.db(), args.get(1));
    let Some(had) = cx.state.store.peek(db, &key).map(|e| e.expires()) else {
        cx.reply.int(0);
        return Ok(());
    };
    let refused = match had {
        None => c.xx || c.gt,
        Some(at) => c.nx || (c.gt && when <= at as i64) || (c.lt && when >= at as i64),
    };
    if refused {
        cx.reply.int(0);
        return Ok(());
    }
    if when <= cx.now() as i64 && !cx.state.store.loading {
        cx.state.store.remove(db, &key);
        cx.changed_as(&[Part::Bytes(b"DEL"), Part::Bytes(&key)]);
    } else {
        cx.state.store.end(db, &key, Some(when.max(1) as u64));
        cx.changed_as(&[Part::Bytes(b"PEXPIREAT"), Part::Bytes(&key), Part::Int(when)]);
    }
    cx.reply.int(1);
    Ok(())
}

pub fn persist(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    let had = cx.state.store.peek(db, &key).is_some_and(|e| e.expires().is_some());
    if had {
        cx.state.store.end(db, &key, None);
        cx.changed();
    }
    cx.reply.int(i64::from(had));
    Ok(())
}

pub fn ttl(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    remaining(cx, args, |when, now| (when.saturating_sub(now) + 500) / 1000)
}

pub fn pttl(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    remaining(cx, args, |when, now| when.saturating_sub(now))
}

pub fn expiretime(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    remaining(cx, args, |when, _| when / 1000)
}

pub fn pexpiretime(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    remaining(cx, args, |when, _| when)
}

/// -2 without the key, -1 without an end, else what `show` makes of (end, now).
fn remaining(cx: &mut Cx<'_>, args: &Args<'_>, show: impl Fn(u64, u64) -> u64) -> Outcome {
    let (db, now) = (cx.db(), cx.now());
    let answer = match cx.state.store.peek(db, &args.get(1)).map(|e| e.expires()) {
        None => -2,
        Some(None) => -1,
        Some(Some(when)) => show(when, now) as i64,
    };
    cx.reply.int(answer);
    Ok(())
}
