//! Streams and datagrams of every family.

use crate::world::{LONG, World, bytes, connection, datagrams, pattern, pop_exactly, run, sga};
use std::rc::Rc;
use std::time::Duration;
use towpath_cbuf::Sga;
use towpath_libos::{Address, Error, How, Kind, Opt, Waiting};

pub fn stream_returns_bytes_whole_and_in_order(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        run(&rt, async {
            for len in [1, 64, 1024, 1025, 5000, 16384, 20000, 65536] {
                let data = pattern(len);
                client.push(sga(&rt, &data)).await.unwrap();
                assert_eq!(pop_exactly(&server, len).await, data, "{address} {len}");
                let mut parts = sga(&rt, &data[..len / 2]);
                parts.append(&mut sga(&rt, &data[len / 2..]));
                server.push(parts).await.unwrap();
                assert_eq!(pop_exactly(&client, len).await, data, "{address} {len}");
            }
        });
    }
}

pub fn stream_larger_than_every_buffer_arrives_whole(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        let data = pattern(9 << 20);
        let mut message = Sga::new();
        for part in data.chunks(100_003) {
            message.append(&mut sga(&rt, part));
        }
        let client = Rc::new(client);
        let pushing = client.clone();
        rt.spawn(async move { pushing.push(message).await.unwrap() }).unwrap();
        let got = run(&rt, pop_exactly(&server, data.len()));
        assert!(got == data, "{address}: the bytes differ");
    }
}

pub fn stream_at_its_end_pops_empty_again_and_again(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        run(&rt, async {
            client.push(sga(&rt, b"last")).await.unwrap();
            client.close().await.unwrap();
            assert_eq!(pop_exactly(&server, 4).await, b"last");
            for _ in 0..3 {
                assert!(server.pop().await.unwrap().is_empty());
            }
        });
    }
}

pub fn stream_half_closed_still_answers(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        run(&rt, async {
            client.push(sga(&rt, b"question")).await.unwrap();
            client.shutdown(How::Write).unwrap();
            assert_eq!(pop_exactly(&server, 8).await, b"question");
            assert!(server.pop().await.unwrap().is_empty());
            server.push(sga(&rt, b"answer")).await.unwrap();
            assert_eq!(pop_exactly(&client, 6).await, b"answer");
            assert!(matches!(client.push(sga(&rt, b"more")).await, Err(Error::Os { .. })));
        });
    }
}

pub fn pushes_to_a_full_stream_keep_their_order(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        let data = pattern(8 << 20);
        let tokens: Vec<_> = data.chunks(40_000).map(|part| rt.push(client.qd(), sga(&rt, part)).unwrap()).collect();
        let got = run(&rt, pop_exactly(&server, data.len()));
        assert!(got == data, "{address}: the bytes differ");
        for done in rt.wait_all(&tokens, Some(LONG)).unwrap() {
            done.outcome.unwrap();
        }
    }
}

pub fn datagram_says_who_sent_it(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (a, b) = datagrams(world, &rt, &address);
        let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        run(&rt, async {
            for round in 0..20u8 {
                a.push_to(sga(&rt, &[round; 33]), &to_b).await.unwrap();
                let got = b.pop_from().await.unwrap();
                assert_eq!((bytes(&got.sga), got.from.as_ref()), (vec![round; 33], Some(&to_a)), "{address}");
                b.push_to(got.sga, got.from.as_ref().unwrap()).await.unwrap();
                assert_eq!(a.pop_from().await.unwrap().from, Some(to_b.clone()));
            }
        });
    }
}

pub fn datagram_of_any_size_arrives_whole(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (a, b) = datagrams(world, &rt, &address);
        let to = b.local_addr().unwrap();
        run(&rt, async {
            for len in [0, 1, 1024, 1025, 1472, 4096, 17_000, 65_000] {
                let data = pattern(len);
                a.push_to(sga(&rt, &data), &to).await.unwrap();
                assert_eq!(bytes(&b.pop().await.unwrap()), data, "{address} {len}");
                let mut parts = sga(&rt, &data[..len / 3]);
                parts.append(&mut sga(&rt, &data[len / 3..]));
                a.push_to(parts, &to).await.unwrap();
                assert_eq!(bytes(&b.pop().await.unwrap()), data, "{address} {len} in parts");
            }
        });
    }
}

pub fn connected_datagram_needs_no_address(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (a, b) = datagrams(world, &rt, &address);
        run(&rt, async {
            a.connect(&b.local_addr().unwrap()).await.unwrap();
            assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
            a.push(sga(&rt, b"plain")).await.unwrap();
            assert_eq!(bytes(&b.pop().await.unwrap()), b"plain");
        });
    }
}

pub fn addresses_of_both_ends_agree(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, listener) = connection(&rt, &address);
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
        assert_eq!(server.local_addr().unwrap(), listener.local_addr().unwrap());
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
        assert!(listener.peer_addr().is_err());
    }
}

pub fn options_are_taken_where_they_apply(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, _server, _listener) = connection(&rt, &address);
        let tcp = !matches!(address, Address::Unix(_));
        for option in [Opt::NoDelay(false), Opt::KeepAlive(Some(Duration::from_secs(30))), Opt::KeepAlive(None)] {
            assert_eq!(client.set_option(option).is_ok(), tcp, "{address} {option:?}");
        }
        for option in [
            Opt::Linger(Some(Duration::from_secs(1))),
            Opt::Linger(None),
            Opt::ReceiveBuffer(1 << 16),
            Opt::SendBuffer(1 << 16),
        ] {
            client.set_option(option).unwrap();
        }
    }
}

pub fn data_pushed_may_be_dropped_at_once(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let (client, server, _listener) = connection(&rt, &address);
        let mut expected = Vec::new();
        let mut tokens = Vec::new();
        for round in 0..64u8 {
            // Our reference goes with the call; memory reused before the kernel is done would show in the bytes.
            let data = vec![round; 50_000];
            tokens.push(rt.push(client.qd(), sga(&rt, &data)).unwrap());
            expected.extend(data);
            drop(rt.memory().copy_from(&[0xEE; 50_000]).unwrap());
        }
        assert!(run(&rt, pop_exactly(&server, expected.len())) == expected, "{address}: the bytes differ");
        rt.wait_all(&tokens, Some(LONG)).unwrap();
    }
}

pub fn every_way_of_waiting_passes_messages(world: &World) {
    for waiting in [Waiting::Spin, Waiting::Adaptive, Waiting::Block] {
        let rt = world.runtime_that(waiting);
        let (client, server, _listener) = connection(&rt, &"127.0.0.1:0".parse().unwrap());
        let push = rt.push(client.qd(), sga(&rt, b"way")).unwrap();
        let pop = rt.pop(server.qd()).unwrap();
        rt.wait(push, Some(LONG)).unwrap().outcome.unwrap();
        // A policy of its own for one call.
        for other in [Waiting::Block, Waiting::Spin] {
            let never = rt.pop(client.qd()).unwrap();
            let error = rt.wait_with(never, Some(Duration::from_millis(2)), other).unwrap_err();
            assert_eq!(error, Error::TimedOut);
        }
        rt.wait(pop, Some(LONG)).unwrap().outcome.unwrap();
    }
}

pub fn many_connections_are_served_at_once(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let listener = rt.listen(&address).unwrap();
        let to = listener.local_addr().unwrap();
        let accepting = rt.clone();
        rt.spawn(async move {
            while let Ok((conn, _)) = listener.accept().await {
                let echo = async move {
                    while let Ok(message) = conn.pop().await {
                        if message.is_empty() || conn.push(message).await.is_err() {
                            return;
                        }
                    }
                };
                accepting.spawn(echo).unwrap();
            }
        })
        .unwrap();
        run(&rt, async {
            let mut clients = Vec::new();
            for _ in 0..200 {
                let client = rt.socket(to.domain(), Kind::Stream).unwrap();
                client.connect(&to).await.unwrap();
                clients.push(client);
            }
            for round in 0..3u8 {
                for (i, client) in clients.iter().enumerate() {
                    client.push(sga(&rt, &[i as u8 ^ round; 100])).await.unwrap();
                }
                for (i, client) in clients.iter().enumerate() {
                    assert_eq!(pop_exactly(client, 100).await, vec![i as u8 ^ round; 100], "{address}");
                }
            }
        });
        rt.shutdown();
        assert_eq!(rt.stats().queues, 0);
    }
}

pub fn unix_path_is_removed_with_its_queue(world: &World) {
    let rt = world.runtime();
    let path = world.path("here");
    let listener = rt.listen(&Address::unix(&path)).unwrap();
    assert!(path.exists());
    drop(listener);
    assert!(!path.exists());
}
