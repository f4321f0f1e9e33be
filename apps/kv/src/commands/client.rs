//! `CLIENT`: what connections are there, and what becomes of them.

use super::{Cx, Fault, Outcome, SYNTAX, int, unknown_subcommand, wrong_number};
use crate::resp::{Args, Protocol};
use crate::state::{Peer, Replies};
use std::rc::Rc;

pub fn client(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    type Run = fn(&mut Cx<'_>, &Args<'_>) -> Outcome;
    // Name, fewest and most arguments, function.
    const SUBCOMMANDS: [(&str, usize, usize, Run); 13] = [
        ("ID", 2, 2, id),
        ("INFO", 2, 2, info),
        ("LIST", 2, usize::MAX, list),
        ("SETNAME", 3, 3, setname),
        ("GETNAME", 2, 2, getname),
        ("SETINFO", 4, 4, setinfo),
        ("KILL", 3, usize::MAX, kill),
        ("NO-EVICT", 3, 3, no_evict),
        ("REPLY", 3, 3, reply),
        ("PAUSE", 3, 4, pause),
        ("UNPAUSE", 2, 2, unpause),
        ("UNBLOCK", 3, 4, unblock),
        ("HELP", 2, 2, help),
    ];
    let Some((name, least, most, run)) = SUBCOMMANDS.iter().find(|s| args.is(1, s.0)) else {
        return Err(unknown_subcommand(args));
    };
    if args.len() < *least || args.len() > *most {
        return Err(wrong_number(&format!("client|{}", name.to_lowercase())));
    }
    run(cx, args)
}

fn help(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let lines = [
        "CLIENT <subcommand> [<arg> ...]. Subcommands are:",
        "GETNAME, ID, INFO, KILL, LIST, NO-EVICT, PAUSE, REPLY, SETINFO, SETNAME, UNPAUSE",
    ];
    cx.reply.array(lines.len());
    for line in lines {
        cx.reply.simple(line);
    }
    Ok(())
}

fn id(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let id = cx.session.peer.id;
    cx.reply.int(id as i64);
    Ok(())
}

/// One client as `CLIENT LIST` shows it.
fn line(peer: &Peer, now: u64) -> String {
    let library = peer.client_library.borrow();
    let (input, output) = peer.held.get();
    let multi = peer.queued.get();
    let flags = if multi >= 0 { "x" } else { "N" };
    format!(
        "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={flags} db={} sub=0 psub=0 ssub=0 multi={multi} \
         qbuf={input} qbuf-free=0 argv-mem=0 multi-mem=0 obl=0 oll=0 omem={output} tot-mem={} events=r cmd={} \
         user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
        peer.id,
        peer.addr,
        peer.laddr,
        peer.name.borrow(),
        now.saturating_sub(peer.since) / 1000,
        now.saturating_sub(peer.active.get()) / 1000,
        peer.db.get(),
        input + output,
        peer.command.get(),
        if peer.protocol.get() == Protocol::Resp3 { 3 } else { 2 },
        library.0,
        library.1,
    )
}

fn info(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let text = line(&cx.session.peer, cx.now());
    cx.reply.verbatim(&text);
    Ok(())
}

fn list(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let mut ids: Option<Vec<u64>> = None;
    let mut none = false;
    if args.len() == 4 && args.is(2, "TYPE") {
        match args.get(3).to_ascii_lowercase().as_slice() {
            b"normal" => {}
            b"master" | b"replica" | b"slave" | b"pubsub" => none = true,
            other => return Err(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(other)).into()),
        }
    } else if args.len() > 3 && args.is(2, "ID") {
        let parse =
            |i| int(args, i).ok().and_then(|n| u64::try_from(n).ok()).ok_or(Fault::from("ERR Invalid client ID"));
        ids = Some((3..args.len()).map(parse).collect::<Result<_, _>>()?);
    } else if args.len() != 2 {
        return Err(SYNTAX.into());
    }
    let now = cx.now();
    let wanted = |p: &&Rc<Peer>| !none && ids.as_ref().is_none_or(|ids| ids.contains(&p.id));
    let text: String = cx.state.peers.values().filter(wanted).map(|p| line(p, now)).collect();
    cx.reply.verbatim(&text);
    Ok(())
}

/// A name without blanks or control characters.
pub fn valid_name(bytes: &[u8]) -> Result<String, Fault> {
    if bytes.iter().all(|b| (b'!'..=b'~').contains(b)) {
        Ok(String::from_utf8_lossy(bytes).into_owned())
    } else {
        Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
    }
}

fn setname(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let name = valid_name(&args.get(2))?;
    *cx.session.peer.name.borrow_mut() = name;
    cx.reply.ok();
    Ok(())
}

fn getname(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let name = cx.session.peer.name.borrow().clone();
    if name.is_empty() {
        cx.reply.null();
    } else {
        cx.reply.bulk(name.as_bytes());
    }
    Ok(())
}

fn setinfo(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let value = valid_name(&args.get(3))
        .map_err(|_| Fault::from("ERR lib-name and lib-ver cannot contain spaces, newlines or special characters."))?;
    let mut library = cx.session.peer.client_library.borrow_mut();
    if args.is(2, "LIB-NAME") {
        library.0 = value;
    } else if args.is(2, "LIB-VER") {
        library.1 = value;
    } else {
        let word = String::from_utf8_lossy(&args.get(2)).into_owned();
        return Err(format!("ERR Unrecognized option '{word}'").into());
    }
    drop(library);
    cx.reply.ok();
    Ok(())
}

/// Which clients to disconnect.
#[derive(Default)]
struct Filter {
    id: Option<u64>,
    addr: Option<String>,
    laddr: Option<String>,
    none: bool,
    skip_me: bool,
}

fn kill(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let text = |i: usize| String::from_utf8_lossy(&args.get(i)).into_owned();
    let old_style = args.len() == 3;
    let mut filter = Filter { skip_me: !old_style, ..Filter::default() };
    if old_style {
        filter.addr = Some(text(2));
    } else if !args.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    for i in (2..args.len() - usize::from(old_style)).step_by(2) {
        match args.get(i).to_ascii_uppercase().as_slice() {
            b"ID" => {
                let id = int(args, i + 1).ok().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
                filter.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
            }
            b"ADDR" => filter.addr = Some(text(i + 1)),
            b"LADDR" => filter.laddr = Some(text(i + 1)),
            b"TYPE" => filter.none = !args.is(i + 1, "normal"),
            b"USER" => filter.none = !args.is(i + 1, "default"),
            b"SKIPME" if args.is(i + 1, "yes") => filter.skip_me = true,
            b"SKIPME" if args.is(i + 1, "no") => filter.skip_me = false,
            _ => return Err(SYNTAX.into()),
        }
    }
    let me = cx.session.peer.id;
    let mut killed = 0;
    for peer in cx.state.peers.values() {
        let hit = !filter.none
            && filter.id.is_none_or(|id| id == peer.id)
            && filter.addr.as_ref().is_none_or(|a| *a == peer.addr)
            && filter.laddr.as_ref().is_none_or(|a| *a == peer.laddr)
            && !(filter.skip_me && peer.id == me);
        if hit {
            peer.killed.set(true);
            killed += 1;
        }
    }
    cx.session.closing |= cx.session.peer.killed.get();
    if !old_style {
        cx.reply.int(killed);
    } else if killed > 0 {
        cx.reply.ok();
    } else {
        return Err("ERR No such client".into());
    }
    Ok(())
}

fn on_or_off(args: &Args<'_>) -> Result<bool, Fault> {
    if args.is(2, "ON") {
        Ok(true)
    } else if args.is(2, "OFF") {
        Ok(false)
    } else {
        Err(SYNTAX.into())
    }
}

fn no_evict(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    cx.session.peer.no_evict.set(on_or_off(args)?);
    cx.reply.ok();
    Ok(())
}

fn reply(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.is(2, "ON") {
        let was_on = cx.session.replies == Replies::On;
        cx.session.replies = Replies::On;
        if was_on {
            cx.reply.ok();
        }
    } else if args.is(2, "OFF") {
        cx.session.replies = Replies::Off;
    } else if args.is(2, "SKIP") {
        if cx.session.replies == Replies::On {
            cx.session.replies = Replies::SkipNext;
        }
    } else {
        return Err(SYNTAX.into());
    }
    Ok(())
}

fn pause(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let millis = u64::try_from(int(args, 2).map_err(|_| "ERR timeout is not an integer or out of range")?)
        .map_err(|_| "ERR timeout is negative")?;
    let writes_only = match args.len() {
        4 if args.is(3, "WRITE") => true,
        4 if args.is(3, "ALL") => false,
        4 => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
        _ => false,
    };
    cx.state.pause = Some((cx.now().saturating_add(millis), writes_only));
    cx.reply.ok();
    Ok(())
}

fn unpause(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    cx.state.pause = None;
    cx.reply.ok();
    Ok(())
}

/// No command blocks, so there is never anyone to unblock.
fn unblock(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    int(args, 2)?;
    cx.reply.int(0);
    Ok(())
}
