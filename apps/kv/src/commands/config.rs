//! `CONFIG`.

use super::{Cx, Fault, Outcome, unknown_subcommand, wrong_number};
use crate::config::{NAMES, SetError};
use crate::glob;
use crate::resp::Args;
use crate::state::Totals;
use crate::store::Counts;

pub fn config(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.is(1, "GET") {
        if args.len() < 3 {
            return Err(wrong_number("config|get"));
        }
        get(cx, args);
        return Ok(());
    }
    if args.is(1, "SET") {
        if args.len() < 4 || !args.len().is_multiple_of(2) {
            return Err(wrong_number("config|set"));
        }
        return set(cx, args);
    }
    if args.is(1, "RESETSTAT") {
        let connections = cx.state.totals.connections;
        cx.state.totals = Totals { connections, ..Totals::default() };
        cx.state.store.counts = Counts::default();
        cx.state.calls.fill(0);
        cx.reply.ok();
        return Ok(());
    }
    if args.is(1, "REWRITE") {
        return Err("ERR The server is running without a config file".into());
    }
    if args.is(1, "HELP") {
        cx.reply.array(4);
        for line in
            ["CONFIG <subcommand> [<arg> ...]. Subcommands are:", "GET <pattern>", "SET <name> <value>", "RESETSTAT"]
        {
            cx.reply.simple(line);
        }
        return Ok(());
    }
    Err(unknown_subcommand(args))
}

fn get(cx: &mut Cx<'_>, args: &Args<'_>) {
    let wanted =
        |name: &str| (2..args.len()).any(|i| glob::matches(&args.get(i).to_ascii_lowercase(), name.as_bytes()));
    let found: Vec<(&str, String)> = NAMES
        .into_iter()
        .filter(|name| wanted(name))
        .filter_map(|name| cx.state.config.get(name).map(|value| (name, value)))
        .collect();
    cx.reply.map(found.len());
    for (name, value) in found {
        cx.reply.bulk(name.as_bytes());
        cx.reply.bulk(value.as_bytes());
    }
}

/// Sets every pair, or none.
fn set(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let mut changed = cx.state.config.clone();
    for i in (2..args.len()).step_by(2) {
        let name = String::from_utf8_lossy(&args.get(i)).to_lowercase();
        let value = String::from_utf8_lossy(&args.get(i + 1)).into_owned();
        changed.set(&name, &value).map_err(|error| refusal(&name, &error))?;
    }
    cx.state.config = changed;
    cx.reply.ok();
    Ok(())
}

fn refusal(name: &str, error: &SetError) -> Fault {
    match error {
        SetError::Unknown => format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'").into(),
        SetError::Immutable => {
            format!("ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config").into()
        }
        SetError::Invalid(why) => {
            format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into()
        }
    }
}
