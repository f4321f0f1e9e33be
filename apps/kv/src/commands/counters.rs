//! Counters: `INCR` and its relatives.

use super::{Cx, Outcome, int};
use crate::log::Part;
use crate::number::{FloatError, add_decimals};
use crate::resp::Args;
use crate::store::{Expiry, Value};

const OVERFLOW: &str = "ERR increment or decrement would overflow";

pub fn incr(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    add(cx, args, 1)
}

pub fn decr(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    add(cx, args, -1)
}

pub fn incrby(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    add(cx, args, int(args, 2)?)
}

pub fn decrby(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let by = int(args, 2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    add(cx, args, by)
}

fn add(cx: &mut Cx<'_>, args: &Args<'_>, by: i64) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    let old = match cx.state.store.peek(db, &key) {
        Some(entry) => entry.value.as_int().ok_or(super::NOT_INTEGER)?,
        None => 0,
    };
    let sum = old.checked_add(by).ok_or(OVERFLOW)?;
    cx.state.store.set(db, &key, Value::Int(sum), Expiry::Keep);
    cx.changed();
    cx.reply.int(sum);
    Ok(())
}

pub fn incrbyfloat(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let (db, key) = (cx.db(), args.get(1));
    let sum = {
        let old = cx.state.store.peek(db, &key).map(|e| e.value.bytes());
        add_decimals(old.as_deref().unwrap_or(b"0"), &args.get(2)).map_err(|e| match e {
            FloatError::NotANumber => "ERR value is not a valid float",
            FloatError::NotFinite => "ERR increment would produce NaN or Infinity",
        })?
    };
    let value = Value::from_bytes(sum.as_bytes(), &cx.state.memory)?;
    cx.state.store.set(db, &key, value, Expiry::Keep);
    // The sum, not the step: reading the log back must not round again.
    cx.changed_as(&[Part::Bytes(b"SET"), Part::Bytes(&key), Part::Bytes(sum.as_bytes()), Part::Bytes(b"KEEPTTL")]);
    cx.reply.bulk(sum.as_bytes());
    Ok(())
}
