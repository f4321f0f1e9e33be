//! Files as queues.

use crate::world::{LONG, World, bytes, connection, pattern, pop_exactly, run, sga};
use std::rc::Rc;
use std::time::Duration;
use towpath_libos::{Error, OpenOptions, Queue, Runtime, Whence};

async fn read_all(file: &Queue) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let part = file.pop().await.unwrap();
        if part.is_empty() {
            return all;
        }
        all.extend(bytes(&part));
    }
}

fn new_file(world: &World, rt: &Runtime) -> Queue {
    rt.creat(world.path(&towpath_testing::unique("file"))).unwrap()
}

pub fn file_reads_back_what_was_written(world: &World) {
    let rt = world.runtime();
    let file = new_file(world, &rt);
    run(&rt, async {
        let mut message = sga(&rt, b"one ");
        message.append(&mut sga(&rt, b"two "));
        file.push(message).await.unwrap();
        file.push(sga(&rt, b"three")).await.unwrap();
        file.sync().await.unwrap();
        assert_eq!(file.lseek(0, Whence::Start).unwrap(), 0);
        assert_eq!(read_all(&file).await, b"one two three");
        assert!(file.pop().await.unwrap().is_empty(), "the end stays the end");
    });
}

pub fn file_appends_durably_in_order(world: &World) {
    let rt = world.runtime();
    let path = world.path("log");
    let options = OpenOptions::new().append(true).create(true);
    let file = rt.open(&path, options).unwrap();
    let tokens: Vec<_> = (0..50u8).map(|n| rt.push_sync(file.qd(), sga(&rt, &[b'a' + n % 26; 3])).unwrap()).collect();
    for done in rt.wait_all(&tokens, Some(LONG)).unwrap() {
        done.outcome.unwrap();
    }
    let expected: Vec<u8> = (0..50u8).flat_map(|n| [b'a' + n % 26; 3]).collect();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    let again = rt.open(&path, options).unwrap();
    run(&rt, again.push_sync(sga(&rt, b"!"))).unwrap();
    assert_eq!(std::fs::read(&path).unwrap().len(), 151);
}

pub fn file_cursor_moves_as_lseek_says(world: &World) {
    let rt = world.runtime();
    let file = new_file(world, &rt);
    run(&rt, async {
        file.push(sga(&rt, b"0123456789")).await.unwrap();
        assert_eq!(file.lseek(0, Whence::Current).unwrap(), 10);
        assert_eq!(file.lseek(-4, Whence::End).unwrap(), 6);
        assert_eq!(read_all(&file).await, b"6789");
        assert_eq!(file.lseek(2, Whence::Start).unwrap(), 2);
        file.push(sga(&rt, b"XY")).await.unwrap();
        file.lseek(0, Whence::Start).unwrap();
        assert_eq!(read_all(&file).await, b"01XY456789");
        assert_eq!(file.lseek(-100, Whence::Current).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(file.lseek(0, Whence::Current).unwrap(), 10, "a refused seek moves nothing");
    });
}

pub fn file_truncated_is_short(world: &World) {
    let rt = world.runtime();
    let file = new_file(world, &rt);
    run(&rt, async {
        file.push(sga(&rt, b"0123456789")).await.unwrap();
        file.truncate(4).unwrap();
        assert_eq!(file.size().unwrap(), 4);
        file.truncate(6).unwrap();
        file.lseek(0, Whence::Start).unwrap();
        assert_eq!(read_all(&file).await, b"0123\0\0");
    });
}

pub fn file_missing_says_its_name(world: &World) {
    let rt = world.runtime();
    let path = world.path("missing");
    let Err(error) = rt.open(&path, OpenOptions::new().read(true)) else { panic!("it does not exist") };
    assert_eq!(error.errno(), libc::ENOENT);
    assert!(error.to_string().contains("missing"), "{error}");
    let file = rt.creat(&path).unwrap();
    assert!(matches!(file.bind(&"127.0.0.1:0".parse().unwrap()), Err(Error::Unsupported { .. })));
    let read_only = rt.open(&path, OpenOptions::new().read(true)).unwrap();
    assert_eq!(run(&rt, read_only.push(sga(&rt, b"x"))).unwrap_err().errno(), libc::EBADF);
}

pub fn file_larger_than_a_buffer_reads_whole(world: &World) {
    let rt = world.runtime();
    let file = new_file(world, &rt);
    let data = pattern(3_000_000);
    run(&rt, async {
        for part in data.chunks(700_000) {
            file.push(sga(&rt, part)).await.unwrap();
        }
        file.lseek(0, Whence::Start).unwrap();
        assert!(read_all(&file).await == data, "the bytes differ");
    });
}

pub fn file_syncs_beside_sockets(world: &World) {
    let rt = world.runtime();
    let (client, server, _listener) = connection(&rt, &"127.0.0.1:0".parse().unwrap());
    let log = Rc::new(new_file(world, &rt));
    rt.spawn(async move {
        while let Ok(message) = server.pop().await {
            if message.is_empty() {
                return;
            }
            log.push_sync(message.clone()).await.unwrap();
            server.push(message).await.unwrap();
        }
    })
    .unwrap();
    run(&rt, async {
        for n in 0..20u8 {
            client.push(sga(&rt, &[n; 64])).await.unwrap();
            assert_eq!(pop_exactly(&client, 64).await, vec![n; 64]);
        }
        rt.sleep(Duration::from_micros(1)).await;
    });
}
