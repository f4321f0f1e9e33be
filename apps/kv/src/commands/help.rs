//! `COMMAND`: what clients ask about the commands.

use super::{Cx, Outcome, Spec, TABLE, find, unknown_subcommand, wrong_number};
use crate::glob;
use crate::resp::{Args, Reply};

pub fn command(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.len() == 1 {
        cx.reply.array(TABLE.len());
        for spec in TABLE {
            info(&mut cx.reply, spec);
        }
    } else if args.is(1, "COUNT") {
        cx.reply.count(TABLE.len());
    } else if args.is(1, "INFO") {
        some(cx, args, info);
    } else if args.is(1, "DOCS") {
        let named: Vec<&Spec> = (2..args.len()).filter_map(|i| find(&args.get(i)).map(|f| f.1)).collect();
        let all: Vec<&Spec> = TABLE.iter().collect();
        let specs = if args.len() == 2 { all } else { named };
        cx.reply.map(specs.len());
        for spec in specs {
            docs(&mut cx.reply, spec);
        }
    } else if args.is(1, "LIST") {
        return list(cx, args);
    } else if args.is(1, "GETKEYS") {
        return getkeys(cx, args);
    } else {
        return Err(unknown_subcommand(args));
    }
    Ok(())
}

/// One reply for each named command, null for those that do not exist; without names one for each command.
fn some(cx: &mut Cx<'_>, args: &Args<'_>, show: fn(&mut Reply<'_>, &Spec)) {
    if args.len() == 2 {
        cx.reply.array(TABLE.len());
        TABLE.iter().for_each(|spec| show(&mut cx.reply, spec));
        return;
    }
    cx.reply.array(args.len() - 2);
    for i in 2..args.len() {
        match find(&args.get(i)) {
            Some((_, spec)) => show(&mut cx.reply, spec),
            None => cx.reply.null_array(),
        }
    }
}

fn info(reply: &mut Reply<'_>, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.int(i64::from(spec.arity));
    let flags = spec.flags.names();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    reply.int(i64::from(spec.keys.0));
    reply.int(i64::from(spec.keys.1));
    reply.int(i64::from(spec.keys.2));
    // ACL categories, tips, key specifications, subcommands: none.
    reply.set(1);
    reply.simple(&format!("@{}", spec.group));
    (0..3).for_each(|_| reply.array(0));
}

fn docs(reply: &mut Reply<'_>, spec: &Spec) {
    reply.bulk(spec.name.as_bytes());
    reply.map(3);
    for (key, value) in [("summary", spec.summary), ("since", "1.0.0"), ("group", spec.group)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

fn list(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let pattern = match args.len() {
        2 => None,
        5 if args.is(2, "FILTERBY") && args.is(3, "PATTERN") => Some(args.get(4)),
        _ => return Err(super::SYNTAX.into()),
    };
    let wanted = |s: &&Spec| pattern.as_ref().is_none_or(|p| glob::matches(p, s.name.as_bytes()));
    let names: Vec<&str> = TABLE.iter().filter(wanted).map(|s| s.name).collect();
    cx.reply.array(names.len());
    names.iter().for_each(|name| cx.reply.bulk(name.as_bytes()));
    Ok(())
}

fn getkeys(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.len() < 4 {
        return Err(wrong_number("command|getkeys"));
    }
    let (_, spec) = find(&args.get(2)).ok_or("ERR Invalid command specified")?;
    let n = args.len() as i32 - 2;
    let fits = if spec.arity >= 0 { n == i32::from(spec.arity) } else { n >= -i32::from(spec.arity) };
    if !fits {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let (first, last, step) = (i32::from(spec.keys.0), i32::from(spec.keys.1), i32::from(spec.keys.2));
    if first == 0 {
        return Err("ERR The command has no key arguments".into());
    }
    let last = if last < 0 { n + last } else { last };
    let keys: Vec<i32> = (first..=last).step_by(step as usize).collect();
    cx.reply.array(keys.len());
    for key in keys {
        cx.reply.bulk(&args.get(key as usize + 2));
    }
    Ok(())
}
