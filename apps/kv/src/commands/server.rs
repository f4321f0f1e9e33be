//! The server itself, and the connection's own state.

use super::{Cx, Outcome, SYNTAX, database, int, transactions, unknown_subcommand, wrong_number};
use crate::resp::{Args, Protocol};
use crate::state::{Replies, Stop};

pub fn ping(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    match args.len() {
        1 => cx.reply.simple("PONG"),
        2 => cx.reply.bulk(&args.get(1)),
        _ => return Err(wrong_number("ping")),
    }
    Ok(())
}

pub fn echo(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    cx.reply.bulk(&args.get(1));
    Ok(())
}

pub fn select(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let db = database(args, 1)?;
    cx.session.peer.db.set(db);
    cx.reply.ok();
    Ok(())
}

const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Checks a name and password.
fn log_in(cx: &mut Cx<'_>, user: &[u8], password: &[u8]) -> Outcome {
    let wanted = cx.state.config.requirepass.as_bytes();
    // With no password set the default user logs in with any.
    if user != b"default" || !(wanted.is_empty() || same(wanted, password)) {
        return Err(WRONG_PASS.into());
    }
    cx.session.authenticated = true;
    Ok(())
}

/// Comparison whose time tells nothing about where the texts differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

pub fn auth(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    match args.len() {
        2 if cx.state.config.requirepass.is_empty() => {
            return Err("ERR AUTH <password> called without any password configured for the default user. Are you \
                        sure your configuration is correct?"
                .into());
        }
        2 => log_in(cx, b"default", &args.get(1))?,
        3 => log_in(cx, &args.get(1), &args.get(2))?,
        _ => return Err(SYNTAX.into()),
    }
    cx.reply.ok();
    Ok(())
}

pub fn hello(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let mut protocol = cx.session.peer.protocol.get();
    let mut i = 1;
    if args.len() > 1 {
        protocol = match crate::number::parse_i64(&args.get(1)) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
        };
        i = 2;
    }
    let mut name = None;
    while i < args.len() {
        if args.is(i, "AUTH") && i + 2 < args.len() {
            log_in(cx, &args.get(i + 1), &args.get(i + 2))?;
            i += 3;
        } else if args.is(i, "SETNAME") && i + 1 < args.len() {
            name = Some(super::client::valid_name(&args.get(i + 1))?);
            i += 2;
        } else {
            let word = String::from_utf8_lossy(&args.get(i)).into_owned();
            return Err(format!("ERR Syntax error in HELLO option '{word}'").into());
        }
    }
    if !cx.session.authenticated {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                    AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                    version at the same time"
            .into());
    }
    if let Some(name) = name {
        *cx.session.peer.name.borrow_mut() = name;
    }
    cx.session.peer.protocol.set(protocol);
    cx.reply.protocol = protocol;
    let id = cx.session.peer.id as i64;
    let reply = &mut cx.reply;
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", super::info::REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.int(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.int(id);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

pub fn reset(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    transactions::leave(cx.session);
    cx.state.unwatch(cx.session);
    let peer = &cx.session.peer;
    peer.db.set(0);
    peer.protocol.set(Protocol::Resp2);
    peer.name.borrow_mut().clear();
    peer.no_evict.set(false);
    cx.session.replies = Replies::On;
    cx.session.authenticated = cx.state.config.requirepass.is_empty();
    cx.reply.protocol = Protocol::Resp2;
    cx.reply.simple("RESET");
    Ok(())
}

pub fn quit(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    cx.session.closing = true;
    cx.reply.ok();
    Ok(())
}

pub fn shutdown(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    for i in 1..args.len() {
        if !["NOSAVE", "SAVE", "NOW", "FORCE"].iter().any(|word| args.is(i, word)) {
            return Err(SYNTAX.into());
        }
    }
    cx.state.stop = Some(Stop::Gracefully);
    cx.session.closing = true;
    Ok(())
}

pub fn time(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let now = cx.now();
    cx.reply.array(2);
    cx.reply.bulk((now / 1000).to_string().as_bytes());
    cx.reply.bulk((now % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub fn lastsave(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let at = cx.state.last_save;
    cx.reply.int(at as i64);
    Ok(())
}

pub fn bgrewriteaof(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let Some(log) = &mut cx.state.log else {
        return Err("ERR The append-only log is off; start the server with it to rewrite it".into());
    };
    if log.rewriting || log.rewrite_wanted {
        return Err("ERR Background append only file rewriting already in progress".into());
    }
    log.rewrite_wanted = true;
    log.wake_writer();
    cx.reply.simple("Background append only file rewriting started");
    Ok(())
}

/// There are no replicas: as many as were asked for and more are never reached, so the answer is zero at once.
pub fn wait(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    int(args, 1)?;
    if int(args, 2).map_err(|_| "ERR timeout is not an integer or out of range")? < 0 {
        return Err("ERR timeout is negative".into());
    }
    cx.reply.int(0);
    Ok(())
}

pub fn debug(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if args.is(1, "JMAP") || args.is(1, "SLEEP") || args.is(1, "SET-ACTIVE-EXPIRE") {
        return Err("ERR DEBUG command not allowed: it would stop every client".into());
    }
    if args.is(1, "OBJECT") && args.len() == 3 {
        let db = cx.db();
        let line = cx.state.store.peek(db, &args.get(2)).map(|e| {
            format!("Value at:0 refcount:1 encoding:{} serializedlength:{}", e.value.encoding(), e.value.len())
        });
        cx.reply.simple(&line.ok_or(super::NO_SUCH_KEY)?);
        return Ok(());
    }
    Err(unknown_subcommand(args))
}
