//! In-memory queues, futures that are given up, and what ends a sleep.

use crate::world::{World, bytes, connection, pop_exactly, run, sga};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use towpath_libos::{Error, Kind, Runtime, Waiting};

pub fn memory_queue_keeps_order_and_references(world: &World) {
    let rt = world.runtime();
    let queue = Rc::new(rt.queue().unwrap());
    let data = rt.memory().copy_from(&[9; 5000]).unwrap();
    let pushing = queue.clone();
    let sent = data.clone();
    rt.spawn(async move {
        for n in 0..5000 {
            pushing.push(sent.slice(..n)).await.unwrap();
        }
    })
    .unwrap();
    run(&rt, async {
        for n in 0..5000 {
            let got = queue.pop().await.unwrap();
            assert_eq!(got.len(), n);
            if let [part] = got.segments() {
                assert_eq!(part.as_ptr(), data.as_ptr(), "passed by reference");
            }
        }
    });
}

pub fn memory_queue_that_is_full_lets_pushes_wait(world: &World) {
    let rt = world.runtime();
    let queue = rt.queue().unwrap();
    let pushed = Rc::new(Cell::new(0));
    let (counting, pushing) = (pushed.clone(), rt.clone());
    let qd = queue.qd();
    rt.spawn(async move {
        for _ in 0..3000 {
            let token = pushing.push(qd, pushing.memory().copy_from(b"m").unwrap()).unwrap();
            pushing.completion(token).await.unwrap().outcome.unwrap();
            counting.set(counting.get() + 1);
        }
    })
    .unwrap();
    run(&rt, rt.sleep(Duration::from_millis(5)));
    let held = pushed.get();
    assert!(held > 0 && held < 3000, "{held} pushes went in");
    run(&rt, async {
        for _ in 0..3000 {
            queue.pop().await.unwrap();
        }
    });
    run(&rt, rt.sleep(Duration::from_millis(1)));
    assert_eq!(pushed.get(), 3000);
}

pub fn pop_given_up_loses_nothing(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        run(&rt, async {
            for round in 0..30u8 {
                let nothing = rt.timeout(Duration::from_micros(100), server.pop()).await;
                assert_eq!(nothing.unwrap_err(), Error::TimedOut);
                client.push(sga(&rt, &[round; 10])).await.unwrap();
                // Given up at a random time, perhaps when the data is there but not yet taken.
                let early = rt.timeout(Duration::from_micros(u64::from(round) * 3), server.pop()).await;
                let got = match early {
                    Ok(got) => bytes(&got.unwrap()),
                    Err(_) => pop_exactly(&server, 10).await,
                };
                assert_eq!(got, [round; 10], "{address}");
            }
        });
    }
}

pub fn accept_given_up_loses_nothing(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let listener = rt.listen(&address).unwrap();
        let to = listener.local_addr().unwrap();
        run(&rt, async {
            for _ in 0..10 {
                assert!(rt.timeout(Duration::from_micros(50), listener.accept()).await.is_err());
                let client = rt.socket(to.domain(), Kind::Stream).unwrap();
                client.connect(&to).await.unwrap();
                rt.sleep(Duration::from_micros(100)).await;
                let (server, _) = listener.accept().await.unwrap();
                client.push(sga(&rt, b"hello")).await.unwrap();
                assert_eq!(pop_exactly(&server, 5).await, b"hello");
            }
        });
    }
}

pub fn another_thread_wakes_a_sleeping_runtime(world: &World) {
    for waiting in [Waiting::Block, Waiting::Adaptive, Waiting::Spin] {
        let rt = world.runtime_that(waiting);
        wake_from_a_thread(&rt, false);
        wake_from_a_thread(&rt, true);
    }
}

fn wake_from_a_thread(rt: &Runtime, in_coroutine: bool) {
    let shared: Arc<(AtomicBool, Mutex<Option<Waker>>)> = Arc::default();
    let (theirs, ours) = (shared.clone(), shared);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        theirs.0.store(true, Ordering::Release);
        if let Some(waker) = theirs.1.lock().unwrap().take() {
            waker.wake();
        }
    });
    let waits = std::future::poll_fn(move |cx| {
        *ours.1.lock().unwrap() = Some(cx.waker().clone());
        if ours.0.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    });
    if in_coroutine {
        let queue = Rc::new(rt.queue().unwrap());
        let done = queue.clone();
        let message = sga(rt, b"woken");
        rt.spawn(async move {
            waits.await;
            done.push(message).await.unwrap();
        })
        .unwrap();
        assert_eq!(bytes(&run(rt, queue.pop()).unwrap()), b"woken");
    } else {
        run(rt, waits);
    }
    thread.join().unwrap();
}

pub fn timer_ends_a_sleep(world: &World) {
    for waiting in [Waiting::Block, Waiting::Adaptive, Waiting::Spin] {
        let rt = world.runtime_that(waiting);
        let start = Instant::now();
        rt.block_on(rt.sleep(Duration::from_millis(15)));
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(14) && took < Duration::from_secs(5), "{took:?}");
    }
}

pub fn shutdown_of_the_runtime_ends_everything(world: &World) {
    let rt = world.runtime();
    let (client, server, listener) = connection(&rt, &"127.0.0.1:0".parse().unwrap());
    let held = rt.clone();
    let server = Rc::new(server);
    let serving = server.clone();
    rt.spawn(async move {
        let _held = held;
        let _ = serving.pop().await;
    })
    .unwrap();
    let token = rt.pop(client.qd()).unwrap();
    run(&rt, rt.sleep(Duration::from_millis(1)));
    rt.shutdown();
    let stats = rt.stats();
    assert_eq!((stats.queues, stats.coroutines), (0, 0));
    assert_eq!(rt.wait(token, None).unwrap().outcome.unwrap_err(), Error::Canceled);
    assert_eq!(run(&rt, listener.accept()).err(), Some(Error::BadQueue(listener.qd())));
}

pub fn descriptor_of_a_closed_queue_is_stale(world: &World) {
    let rt = world.runtime();
    let queue = rt.queue().unwrap();
    let qd = queue.qd();
    rt.close(qd).unwrap();
    assert_eq!(rt.close(qd).unwrap_err(), Error::BadQueue(qd));
    let next = rt.queue().unwrap();
    assert_ne!(next.qd(), qd);
    assert_eq!(rt.pop(qd).unwrap_err(), Error::BadQueue(qd));
    drop(queue);
    run(&rt, next.push(sga(&rt, b"the stale handle closed nothing"))).unwrap();
}
