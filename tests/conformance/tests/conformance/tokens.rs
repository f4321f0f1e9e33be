//! Tokens, waiting for one, any and all of them, and wait sets.

use crate::world::{LONG, World, bytes, connection, run, sga};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use towpath_libos::{Address, Error, Outcome, Queue, Runtime, Token};

fn pair(rt: &Runtime) -> (Queue, Queue, Queue) {
    connection(rt, &"127.0.0.1:0".parse::<Address>().unwrap())
}

pub fn token_waited_for_twice_is_an_error(world: &World) {
    let rt = world.runtime();
    let queue = rt.queue().unwrap();
    let token = rt.push(queue.qd(), sga(&rt, b"x")).unwrap();
    rt.wait(token, Some(LONG)).unwrap().outcome.unwrap();
    assert_eq!(rt.wait(token, None).unwrap_err(), Error::StaleToken(token));
    assert_eq!(rt.wait_any(&[token], None).unwrap_err(), Error::StaleToken(token));
    // The slot is used again, the token is not.
    let next = rt.pop(queue.qd()).unwrap();
    assert_ne!(next, token);
    assert_eq!(rt.wait(token, None).unwrap_err(), Error::StaleToken(token));
}

pub fn token_never_issued_is_an_error(world: &World) {
    let rt = world.runtime();
    for raw in [0, 1, 1 << 24, u64::MAX] {
        let token = Token::from_raw(raw);
        assert_eq!(rt.wait(token, None).unwrap_err(), Error::StaleToken(token));
    }
}

pub fn token_with_a_waiter_refuses_another(world: &World) {
    let rt = world.runtime();
    let queue = rt.queue().unwrap();
    let token = rt.pop(queue.qd()).unwrap();
    let set = rt.wait_set();
    set.add(token).unwrap();
    assert_eq!(set.add(token).unwrap_err(), Error::AlreadyWaited(token));
    assert_eq!(rt.wait(token, Some(Duration::ZERO)).unwrap_err(), Error::AlreadyWaited(token));
    assert_eq!(run(&rt, rt.completion(token)).unwrap_err(), Error::AlreadyWaited(token));
    drop(set);
    assert_eq!(rt.wait(token, Some(Duration::from_millis(1))).unwrap_err(), Error::TimedOut);
}

pub fn token_after_a_timeout_can_be_waited_for(world: &World) {
    let rt = world.runtime();
    let (client, server, _listener) = pair(&rt);
    let token = rt.pop(server.qd()).unwrap();
    let start = Instant::now();
    assert_eq!(rt.wait(token, Some(Duration::from_millis(20))).unwrap_err(), Error::TimedOut);
    assert!(start.elapsed() >= Duration::from_millis(20));
    run(&rt, client.push(sga(&rt, b"late"))).unwrap();
    match rt.wait(token, Some(LONG)).unwrap().outcome.unwrap() {
        Outcome::Popped { sga, .. } => assert_eq!(bytes(&sga), b"late"),
        other => panic!("{other:?}"),
    }
}

pub fn tokens_of_a_closed_queue_are_canceled(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, listener) = connection(&rt, &address);
        let big = vec![7; 16 << 20];
        let mut tokens = vec![rt.pop(client.qd()).unwrap(), rt.pop(client.qd()).unwrap()];
        for part in big.chunks(1 << 20) {
            tokens.push(rt.push(client.qd(), sga(&rt, part)).unwrap());
        }
        let accept = rt.accept(listener.qd()).unwrap();
        rt.close(client.qd()).unwrap();
        rt.close(listener.qd()).unwrap();
        let done = rt.wait_all(&tokens, Some(LONG)).unwrap();
        assert_eq!(done[0].outcome.as_ref().unwrap_err(), &Error::Canceled, "{address}");
        assert_eq!(done[1].outcome.as_ref().unwrap_err(), &Error::Canceled);
        assert_eq!(done.last().unwrap().outcome.as_ref().unwrap_err(), &Error::Canceled);
        assert_eq!(rt.wait(accept, Some(LONG)).unwrap().outcome.unwrap_err(), Error::Canceled);
        drop(server);
    }
    let memory = rt.queue().unwrap();
    let token = rt.pop(memory.qd()).unwrap();
    drop(memory);
    assert_eq!(rt.wait(token, Some(LONG)).unwrap().outcome.unwrap_err(), Error::Canceled);
}

pub fn completion_wakes_one_waiter(world: &World) {
    let rt = world.runtime();
    let (client, server, _listener) = pair(&rt);
    let (server, woken) = (Rc::new(server), Rc::new(Cell::new(0)));
    for _ in 0..50 {
        let (server, woken) = (server.clone(), woken.clone());
        rt.spawn(async move {
            server.pop().await.unwrap();
            woken.set(woken.get() + 1);
        })
        .unwrap();
    }
    for n in 1..=50 {
        run(&rt, async {
            client.push(sga(&rt, b"one")).await.unwrap();
            while woken.get() < n {
                rt.sleep(Duration::from_micros(50)).await;
            }
            rt.sleep(Duration::from_micros(200)).await;
        });
        assert_eq!(woken.get(), n, "one message wakes one coroutine");
    }
}

pub fn wait_any_takes_the_first(world: &World) {
    let rt = world.runtime();
    let queues: Vec<Queue> = (0..10).map(|_| rt.queue().unwrap()).collect();
    let tokens: Vec<Token> = queues.iter().map(|q| rt.pop(q.qd()).unwrap()).collect();
    assert_eq!(rt.wait_any(&tokens, Some(Duration::from_millis(1))).unwrap_err(), Error::TimedOut);
    run(&rt, queues[7].push(sga(&rt, b"seven"))).unwrap();
    let (at, done) = rt.wait_any(&tokens, Some(LONG)).unwrap();
    assert_eq!((at, done.token, done.qd), (7, tokens[7], queues[7].qd()));
    assert!(rt.wait_any(&[], None).is_err(), "nothing to wait for must not wait for ever");
}

pub fn wait_all_keeps_the_order_of_tokens(world: &World) {
    let rt = world.runtime();
    let queues: Vec<Queue> = (0..5).map(|_| rt.queue().unwrap()).collect();
    let tokens: Vec<Token> = queues.iter().map(|q| rt.pop(q.qd()).unwrap()).collect();
    for queue in queues.iter().rev().take(4) {
        run(&rt, queue.push(sga(&rt, b"x"))).unwrap();
    }
    assert_eq!(rt.wait_all(&tokens, Some(Duration::from_millis(1))).unwrap_err(), Error::TimedOut);
    run(&rt, queues[0].push(sga(&rt, b"x"))).unwrap();
    let done = rt.wait_all(&tokens, Some(LONG)).unwrap();
    assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), tokens);
}

pub fn wait_set_of_thousands_brings_the_ready_ones(world: &World) {
    let rt = world.runtime();
    let set = rt.wait_set();
    let queues: Vec<Queue> = (0..5000).map(|_| rt.queue().unwrap()).collect();
    for queue in &queues {
        set.add(rt.pop(queue.qd()).unwrap()).unwrap();
    }
    assert_eq!(set.len(), 5000);
    assert_eq!(set.wait(Some(Duration::from_millis(1))).unwrap_err(), Error::TimedOut);
    for at in [4999, 0, 2500] {
        run(&rt, queues[at].push(sga(&rt, &[at as u8]))).unwrap();
    }
    for at in [4999, 0, 2500] {
        assert_eq!(set.wait(Some(LONG)).unwrap().qd, queues[at].qd(), "in the order they completed");
    }
    assert!(set.try_next().is_none());
    assert_eq!(set.len(), 4997);
    run(&rt, queues[17].push(sga(&rt, b"x"))).unwrap();
    assert_eq!(run(&rt, set.next()).qd, queues[17].qd());
}

pub fn wait_set_forgets_what_is_removed(world: &World) {
    let rt = world.runtime();
    let (a, b) = (rt.queue().unwrap(), rt.queue().unwrap());
    let (first, second) = (rt.pop(a.qd()).unwrap(), rt.pop(b.qd()).unwrap());
    let set = rt.wait_set();
    set.add(first).unwrap();
    set.add(second).unwrap();
    set.remove(first).unwrap();
    assert_eq!(set.remove(first).unwrap_err(), Error::StaleToken(first));
    run(&rt, a.push(sga(&rt, b"a"))).unwrap();
    run(&rt, b.push(sga(&rt, b"b"))).unwrap();
    assert_eq!(set.wait(Some(LONG)).unwrap().token, second);
    assert!(set.is_empty());
    assert!(set.wait(None).is_err(), "an empty set must not wait for ever");
    rt.wait(first, Some(LONG)).unwrap().outcome.unwrap();
}

pub fn wait_inside_a_coroutine_is_refused(world: &World) {
    let rt = world.runtime();
    let queue = rt.queue().unwrap();
    let token = rt.pop(queue.qd()).unwrap();
    let (inside, said) = (rt.clone(), Rc::new(Cell::new(None)));
    let tell = said.clone();
    let task = async move { tell.set(Some(inside.wait(token, None).unwrap_err())) };
    rt.spawn(task).unwrap();
    run(&rt, rt.sleep(Duration::from_millis(1)));
    assert_eq!(said.take(), Some(Error::InsideCoroutine));
}

pub fn tokens_and_futures_share_a_queue(world: &World) {
    let rt = world.runtime();
    let (client, server, _listener) = pair(&rt);
    let token = rt.pop(server.qd()).unwrap();
    run(&rt, client.push(sga(&rt, b"to the token"))).unwrap();
    let done = run(&rt, rt.completion(token)).unwrap();
    assert!(matches!(done.outcome, Ok(Outcome::Popped { .. })));
    run(&rt, client.push(sga(&rt, b"to the future"))).unwrap();
    assert_eq!(bytes(&run(&rt, server.pop()).unwrap()), b"to the future");
}
