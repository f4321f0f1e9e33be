//! Transactions: commands queued by `MULTI` run together by `EXEC`, unless a watched key changed.

use super::{Cx, Outcome, TABLE, find};
use crate::resp::Args;
use crate::state::Session;

pub fn multi(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    if cx.session.queue.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    cx.session.queue = Some(Vec::new());
    cx.session.queue_failed = false;
    cx.session.peer.queued.set(0);
    cx.reply.ok();
    Ok(())
}

pub fn discard(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    if cx.session.queue.is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    leave(cx.session);
    cx.state.unwatch(cx.session);
    cx.reply.ok();
    Ok(())
}

/// Ends the transaction state of a session.
pub fn leave(session: &mut Session) {
    session.queue = None;
    session.queue_failed = false;
    session.peer.queued.set(-1);
}

pub fn exec(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    let Some(queue) = cx.session.queue.take() else { return Err("ERR EXEC without MULTI".into()) };
    let (failed, dirty) = (cx.session.queue_failed, cx.session.peer.dirty.get());
    leave(cx.session);
    cx.state.unwatch(cx.session);
    if failed {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    if dirty {
        cx.reply.null_array();
        return Ok(());
    }
    let writes =
        |c: &crate::resp::Command| find(&c.args().get(0)).is_some_and(|(i, _)| TABLE[i].flags.has(super::Flags::WRITE));
    if let Some(why) = cx.state.log.as_ref().and_then(|l| l.failure.clone())
        && queue.iter().any(writes)
    {
        return Err(super::misconf(&why).into());
    }
    cx.reply.array(queue.len());
    if let Some(log) = &mut cx.state.log {
        log.begin();
    }
    cx.session.executing = true;
    let mut changed = false;
    for command in queue {
        let protocol = cx.session.peer.protocol.get();
        changed |= super::run(cx.state, cx.session, &command.args(), cx.reply.out, protocol);
    }
    cx.session.executing = false;
    if let Some(log) = &mut cx.state.log {
        log.commit();
    }
    if changed {
        cx.effect = super::Effect::Logged;
    }
    Ok(())
}

pub fn watch(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    if cx.session.queue.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    for i in 1..args.len() {
        let (db, key) = (cx.db(), args.get(i));
        // A key that has already expired must not make the transaction fail later.
        cx.state.store.contains(db, &key);
        cx.state.watch(cx.session, &key);
    }
    cx.reply.ok();
    Ok(())
}

pub fn unwatch(cx: &mut Cx<'_>, _: &Args<'_>) -> Outcome {
    cx.state.unwatch(cx.session);
    cx.reply.ok();
    Ok(())
}
