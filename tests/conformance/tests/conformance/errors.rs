//! What goes wrong is told, clearly, and changes nothing else.

use crate::world::{LONG, World, connection, datagrams, pop_exactly, run, sga};
use std::time::Duration;
use towpath_libos::{Address, Domain, Error, Kind, Opt, Runtime};

pub fn connect_to_nobody_is_refused(world: &World) {
    let rt = world.runtime();
    for free in ["127.0.0.1:0", "[::1]:0"] {
        let listener = rt.listen(&free.parse().unwrap()).unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let client = rt.socket(nobody.domain(), Kind::Stream).unwrap();
        let error = run(&rt, client.connect(&nobody)).unwrap_err();
        assert_eq!(error.errno(), libc::ECONNREFUSED);
        assert!(error.to_string().contains(&nobody.to_string()), "{error}");
        assert!(error.to_string().contains("nothing listens there"), "{error}");
    }
}

pub fn bind_to_an_address_in_use_says_so(world: &World) {
    let rt = world.runtime();
    for address in world.addresses() {
        let listener = rt.listen(&address).unwrap();
        let taken = listener.local_addr().unwrap();
        let Err(error) = rt.listen(&taken) else { panic!("{taken} was bound twice") };
        assert_eq!(error.errno(), libc::EADDRINUSE);
        let text = error.to_string();
        assert!(text.contains(&taken.to_string()) && text.contains("choose another"), "{text}");
    }
    let queue = rt.socket(Domain::V4, Kind::Stream).unwrap();
    let error = queue.bind(&"192.0.2.1:9".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("no interface"), "{error}");
}

pub fn address_of_another_family_is_refused(world: &World) {
    let rt = world.runtime();
    let queue = rt.socket(Domain::V4, Kind::Stream).unwrap();
    let six: Address = "[::1]:9".parse().unwrap();
    assert!(matches!(queue.bind(&six), Err(Error::Unsupported { .. })));
    assert!(matches!(run(&rt, queue.connect(&six)), Err(Error::Unsupported { .. })));
    let long = Address::unix("/".repeat(200));
    let unix = rt.socket(Domain::Unix, Kind::Stream).unwrap();
    assert_eq!(unix.bind(&long).unwrap_err().errno(), libc::EINVAL);
}

pub fn peer_that_resets_fails_push_and_pop(world: &World) {
    let rt = world.runtime();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (client, server, _listener) = connection(&rt, &address.parse().unwrap());
        let mut pushes = Vec::new();
        for _ in 0..32 {
            pushes.push(rt.push(server.qd(), sga(&rt, &[1; 1 << 18])).unwrap());
        }
        client.set_option(Opt::Linger(Some(Duration::ZERO))).unwrap();
        run(&rt, client.close()).unwrap();
        let done = rt.wait_all(&pushes, Some(LONG)).unwrap();
        let last = done.into_iter().next_back().unwrap().outcome.unwrap_err().errno();
        assert!(last == libc::ECONNRESET || last == libc::EPIPE, "{last}");
        // The reset is told to whoever asks, however often.
        for _ in 0..3 {
            match run(&rt, server.pop()) {
                Ok(end) => assert!(end.is_empty()),
                Err(error) => assert_eq!(error.errno(), libc::ECONNRESET),
            }
            assert!(run(&rt, server.push(sga(&rt, b"x"))).is_err());
        }
    }
}

pub fn peer_that_never_reads_does_not_stop_others(world: &World) {
    let mut config = world.config();
    config.push_bytes_max = 4 << 20;
    let rt = Runtime::start(config).unwrap();
    for address in world.addresses() {
        let (_deaf, server, _listener) = connection(&rt, &address);
        let (friend, friends_server, _other) = connection(&rt, &"127.0.0.1:0".parse().unwrap());
        let mut refused = None;
        for _ in 0..1000 {
            if let Err(error) = rt.push(server.qd(), sga(&rt, &[1; 1 << 17])) {
                refused = Some(error);
                break;
            }
        }
        assert_eq!(refused, Some(Error::Full { limit: 4 << 20, unit: "bytes" }), "memory is bounded");
        run(&rt, async {
            for _ in 0..10 {
                friends_server.push(sga(&rt, b"still here")).await.unwrap();
                assert_eq!(pop_exactly(&friend, 10).await, b"still here");
            }
        });
    }
}

pub fn operations_that_do_not_apply_say_why(world: &World) {
    let rt = world.runtime();
    let (client, _server, listener) = connection(&rt, &"127.0.0.1:0".parse().unwrap());
    let to = listener.local_addr().unwrap();
    let unsupported = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Unsupported { .. })));
    unsupported(run(&rt, listener.pop()).map(drop));
    unsupported(run(&rt, listener.push(sga(&rt, b"x"))));
    unsupported(run(&rt, listener.connect(&to)));
    unsupported(run(&rt, client.accept()).map(drop));
    unsupported(run(&rt, client.push_to(sga(&rt, b"x"), &to)));
    unsupported(run(&rt, client.sync()));
    unsupported(run(&rt, client.push_sync(sga(&rt, b"x"))));
    unsupported(client.truncate(0));
    let memory = rt.queue().unwrap();
    unsupported(run(&rt, memory.accept()).map(drop));
    unsupported(memory.listen(1));
    assert_eq!(run(&rt, client.connect(&to)).unwrap_err().errno(), libc::EISCONN);
    let fresh = rt.socket(Domain::V4, Kind::Stream).unwrap();
    assert_eq!(run(&rt, fresh.pop()).unwrap_err().errno(), libc::ENOTCONN);
    assert_eq!(run(&rt, fresh.push(sga(&rt, b"x"))).unwrap_err().errno(), libc::ENOTCONN);
}

pub fn datagram_too_large_is_refused(world: &World) {
    let rt = world.runtime();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (a, b) = datagrams(world, &rt, &address.parse().unwrap());
        let to = b.local_addr().unwrap();
        let error = run(&rt, a.push_to(sga(&rt, &[0; 70_000]), &to)).unwrap_err();
        assert_eq!(error.errno(), libc::EMSGSIZE);
        run(&rt, a.push_to(sga(&rt, b"fits"), &to)).unwrap();
        assert_eq!(run(&rt, b.pop()).unwrap().len(), 4);
    }
}

pub fn connect_by_a_missing_path_is_refused(world: &World) {
    let rt = world.runtime();
    let client = rt.socket(Domain::Unix, Kind::Stream).unwrap();
    let error = run(&rt, client.connect(&Address::unix(world.path("nobody")))).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT);
    assert!(error.to_string().contains("nobody"), "{error}");
}
