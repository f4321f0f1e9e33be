//! What buffers and memories promise.

use towpath_cbuf::{Buf, Error, Memory, MemoryConfig, Misuse, Sga, counters};

fn memory() -> Memory {
    Memory::new(MemoryConfig::default()).expect("memory")
}

#[test]
fn alloc_of_any_size_gives_writable_bytes() {
    let memory = memory();
    let sizes: &[usize] = if cfg!(miri) {
        &[0, 1, 16, 100, 4096]
    } else {
        &[0, 1, 15, 16, 17, 100, 1000, 4096, 65_536, 1 << 20, (4 << 20) + 1, 9 << 20]
    };
    for &len in sizes {
        let mut buf = memory.alloc(len).expect("memory");
        assert_eq!(buf.len(), len);
        buf.fill(0xa5);
        let buf = buf.freeze();
        assert!(buf.iter().all(|&b| b == 0xa5));
    }
    assert_eq!(memory.stats().buffers_in_use, 0);
}

#[test]
fn alloc_frame_of_any_size_gives_whole_pages_with_names() {
    let memory = memory();
    let sizes: &[usize] = if cfg!(miri) { &[1, 4096, 5000] } else { &[1, 4096, 5000, 1 << 20, 2 << 20, 3 << 20] };
    for &len in sizes {
        let mut frame = memory.alloc_frame(len).expect("frame");
        frame.fill(7);
        let (_, offset, got) = frame.frame_location().expect("frames have a place");
        assert_eq!((offset % 4096, got as usize), (0, len));
        assert!(frame.id().is_some() && frame.capacity() >= len);
        let (arena, at, _) = frame.frame_location().expect("place");
        let part = frame.freeze().slice(1..);
        let (same, moved, _) = part.frame_location().unwrap_or((arena, at + 1, 0));
        assert_eq!((same, moved), (arena, at + 1));
    }
    assert_eq!(memory.stats().frames_in_use, 0);
}

#[test]
fn frame_reused_never_has_an_old_name() {
    let memory = memory();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..if cfg!(miri) { 50 } else { 10_000 } {
        let frame = memory.alloc_frame(4096).expect("frame");
        assert!(seen.insert(frame.id().expect("name")));
    }
}

#[test]
fn slices_and_splits_share_memory_and_keep_it() {
    let memory = memory();
    let buf = memory.copy_from(b"hello, towpath").expect("memory");
    let before = counters::copied_bytes();
    let mut rest = buf.clone();
    let hello = rest.split_to(5);
    let tail = rest.split_off(2);
    assert_eq!((&*hello, &*rest, &*tail), (&b"hello"[..], &b", "[..], &b"towpath"[..]));
    assert_eq!(hello.as_ptr(), buf.as_ptr());
    assert!(!buf.is_unique());
    drop((buf, rest, tail));
    assert!(hello.is_unique());
    assert_eq!(&*hello, b"hello");
    let _ = before; // other tests of the process copy too; that slices do not is checked in `copies.rs`
}

#[test]
fn try_into_mut_of_shared_buffer_is_refused() {
    let memory = memory();
    let buf = memory.copy_from(b"abc").expect("memory");
    let other = buf.clone();
    let buf = buf.try_into_mut().expect_err("two views exist");
    drop(other);
    let mut buf = buf.try_into_mut().expect("sole owner");
    buf[0] = b'x';
    assert_eq!(&*buf, b"xbc");
    assert!(Buf::from_static(b"s").try_into_mut().is_err());
}

#[test]
fn clones_beyond_the_state_byte_spill_and_come_back() {
    let memory = memory();
    let buf = memory.copy_from(b"x").expect("memory");
    let clones: Vec<Buf> = (0..1000).map(|_| buf.clone()).collect();
    assert!(!buf.is_unique());
    drop(clones);
    assert!(buf.is_unique());
    let at = buf.as_ptr();
    drop(buf);
    assert_eq!(memory.alloc(1).expect("memory").as_ptr(), at, "the object is free again");
}

#[test]
fn heap_limit_reached_is_an_error_and_freeing_helps() {
    let config = MemoryConfig { limit: 1 << 20, ..MemoryConfig::default() };
    let memory = Memory::new(config).expect("memory");
    let mut held = Vec::new();
    let error = loop {
        match memory.alloc(16 << 10) {
            Ok(buf) => held.push(buf),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::OutOfMemory { requested: 16384, limit: 1048576 }), "{error}");
    assert!(!held.is_empty());
    assert!(memory.alloc(8 << 20).is_err(), "large ones count too");
    held.clear();
    memory.alloc(100).expect("memory of other sizes is available again");
}

#[test]
fn frame_limit_reached_is_an_error_and_freeing_helps() {
    let config = MemoryConfig { frame_bytes: 64 << 10, frame_arenas: 2, ..MemoryConfig::default() };
    let memory = Memory::new(config).expect("memory");
    let mut held: Vec<_> = (0..32).map(|_| memory.alloc_frame(4096).expect("within the limit")).collect();
    assert!(matches!(memory.alloc_frame(1), Err(Error::OutOfMemory { .. })));
    held.pop();
    memory.alloc_frame(1).expect("one is free");
    held.clear();
    memory.trim();
    let whole = memory.alloc_frame(64 << 10).expect("free pages join again");
    assert_eq!(whole.len(), 64 << 10);
}

#[test]
fn buffers_that_outlive_their_memory_stay_readable() {
    let buf = memory().copy_from(b"still here").expect("memory");
    let mut frame = memory().alloc_frame(10).expect("frame");
    frame.fill(3);
    assert_eq!(&*buf, b"still here");
    assert_eq!(&*frame, &[3; 10]);
}

#[test]
fn remote_buffer_dropped_elsewhere_returns_to_its_core() {
    let memory = memory();
    let mut sent = Vec::new();
    for i in 0..100u8 {
        let mut frame = memory.alloc_frame(4096).expect("frame");
        frame[0] = i;
        sent.push(frame.freeze().into_remote());
        sent.push(memory.copy_from(&[i]).expect("memory").into_remote());
    }
    assert_eq!((memory.stats().buffers_in_use, memory.stats().buffers_abroad), (0, 200));
    std::thread::spawn(move || {
        let here = Memory::new(MemoryConfig::default()).expect("memory");
        let mut local: Vec<Buf> = sent.into_iter().map(|b| b.adopt(&here)).collect();
        assert_eq!(local.iter().map(|b| usize::from(b[0])).sum::<usize>(), 2 * (0..100).sum::<usize>());
        local.truncate(0);
    })
    .join()
    .expect("the other core");
    memory.drain_remote();
    let stats = memory.stats();
    assert_eq!((stats.buffers_abroad, stats.remote_frees, stats.frames_in_use), (0, 200, 0));
}

#[test]
fn remote_buffer_that_outlives_its_core_is_taken_back_by_whoever_drops_it() {
    let sent = std::thread::spawn(|| {
        let memory = memory();
        let frame = memory.alloc_frame(10).expect("frame").freeze();
        (frame.into_remote(), memory.copy_from(b"abc").expect("memory").into_remote())
    })
    .join()
    .expect("the other core");
    assert_eq!((sent.0.len(), &*sent.1), (10, &b"abc"[..]));
}

#[test]
fn free_while_a_buffer_holds_the_object_defers_its_reuse() {
    let memory = memory();
    let object = memory.malloc(64).expect("memory");
    // SAFETY: the object is live, written before it is shown, and not changed after.
    let held = unsafe {
        object.as_ptr().write_bytes(9, 64);
        memory.hold(object, 64).expect("a live object of this thread")
    };
    // SAFETY: not used through `object` after this.
    unsafe { memory.free(object) }.expect("the first free");
    for _ in 0..1000 {
        assert_ne!(memory.malloc(64).expect("memory"), object, "reused while a buffer refers to it");
    }
    assert_eq!(&*held, &[9; 64]);
    drop(held);
    assert_eq!(memory.malloc(64).expect("memory"), object, "free with the last reference");
}

#[test]
fn free_of_wrong_pointers_is_refused_and_changes_nothing() {
    let memory = memory();
    let object = memory.malloc(100).expect("memory");
    let inside = object.map_addr(|a| a.checked_add(16).expect("an address"));
    let mut local = 0u64;
    let foreign = std::ptr::NonNull::from(&mut local).cast();
    // SAFETY: every pointer that is freed is refused, or freed once.
    unsafe {
        assert!(matches!(memory.free(inside), Err(Error::Misuse(Misuse::Interior))));
        assert!(matches!(memory.free(foreign), Err(Error::Misuse(Misuse::Foreign))));
        memory.free(object).expect("the first free");
        assert!(matches!(memory.free(object), Err(Error::Misuse(Misuse::DoubleFree))));
        memory.trim();
        assert!(matches!(memory.free(object), Err(Error::Misuse(Misuse::Stale))));
        assert!(matches!(memory.hold(object, 1), Err(Error::Misuse(Misuse::Stale))));
    }
    memory.malloc(100).expect("the heap still works");
}

#[test]
fn memory_freed_goes_back_to_the_system() {
    let memory = memory();
    memory.trim();
    let before = memory.stats().heap_held; // a pool can come with what an earlier user's program never freed
    let n = if cfg!(miri) { 40 } else { 4000 };
    let held: Vec<_> = (0..n).map(|_| memory.alloc(2048).expect("memory")).collect();
    assert!(memory.stats().heap_held >= n * 2048);
    drop(held);
    memory.trim();
    assert!(memory.stats().heap_held <= before);
}

#[test]
fn owner_is_dropped_with_the_last_view() {
    struct Owner(std::sync::Arc<std::sync::atomic::AtomicU32>, Vec<u8>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let memory = memory();
    let dropped = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = || dropped.load(std::sync::atomic::Ordering::Relaxed);
    let mut buf = memory.buf_from_owner(Owner(dropped.clone(), b"foreign".to_vec()));
    let front = buf.split_to(3);
    assert_eq!((&*front, &*buf), (&b"for"[..], &b"eign"[..]));
    drop(buf);
    assert_eq!(count(), 0);
    let remote = front.into_remote();
    std::thread::spawn(move || drop(remote)).join().expect("thread");
    memory.drain_remote();
    assert_eq!(count(), 1);
}

#[test]
fn contiguous_of_one_segment_copies_nothing() {
    let memory = memory();
    let buf = memory.copy_from(b"one").expect("memory");
    let at = buf.as_ptr();
    let mut sga = Sga::from(buf);
    assert_eq!(sga.to_contiguous(&memory).expect("memory").as_ptr(), at);
    sga.push_back(Buf::from_static(b" two"));
    assert_eq!(&*sga.to_contiguous(&memory).expect("memory"), b"one two");
}
