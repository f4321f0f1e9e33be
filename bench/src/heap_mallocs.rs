//! The allocators `towpath bench heap` compares: each loaded by itself, so that none replaces another.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

/// An allocator by its two functions.
#[derive(Clone, Copy)]
pub struct Malloc {
    pub name: &'static str,
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Malloc {
    /// An object; the benchmark stops when there is none.
    #[inline(always)]
    pub fn alloc(&self, len: usize) -> *mut u8 {
        // SAFETY: malloc takes any length.
        let ptr = unsafe { (self.malloc)(len) };
        assert!(!ptr.is_null(), "{} has no {len} bytes", self.name);
        ptr.cast()
    }

    /// Frees what `alloc` of the same allocator gave.
    #[inline(always)]
    pub fn free(&self, ptr: *mut u8) {
        // SAFETY: the benchmark frees each object once, with the allocator it came from.
        unsafe { (self.free)(ptr.cast()) }
    }
}

/// An allocator to look for.
pub struct Wanted {
    pub name: &'static str,
    /// `None`: the C library's own.
    soname: Option<&'static CStr>,
    malloc: &'static CStr,
    free: &'static CStr,
}

/// The baselines.
pub const WANTED: &[Wanted] = &[
    Wanted { name: "glibc", soname: None, malloc: c"malloc", free: c"free" },
    Wanted { name: "jemalloc", soname: Some(c"libjemalloc.so.2"), malloc: c"malloc", free: c"free" },
    Wanted { name: "mimalloc", soname: Some(c"libmimalloc.so.2"), malloc: c"mi_malloc", free: c"mi_free" },
];

impl Wanted {
    /// Loads it, or says why not.
    pub fn load(&self) -> Result<Malloc, String> {
        let Some(library) = self.soname else {
            return Ok(Malloc { name: self.name, malloc: libc::malloc, free: libc::free });
        };
        load(self.name, library, self.malloc, self.free)
    }
}

fn load(name: &'static str, library: &CStr, malloc: &CStr, free: &CStr) -> Result<Malloc, String> {
    // SAFETY: the names are C strings; RTLD_LOCAL keeps the library's symbols to itself; the functions have the
    // signatures of the malloc family.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            let why = CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned();
            return Err(why);
        }
        let (m, f) = (libc::dlsym(handle, malloc.as_ptr()), libc::dlsym(handle, free.as_ptr()));
        if m.is_null() || f.is_null() {
            return Err(format!("{} has no {}", library.to_string_lossy(), malloc.to_string_lossy()));
        }
        Ok(Malloc {
            name,
            malloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(m),
            free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(f),
        })
    }
}

/// Starts this program again with room for the thread-local memory of libraries loaded late, which jemalloc needs.
pub fn make_room() -> Result<(), String> {
    const NAME: &str = "GLIBC_TUNABLES";
    if std::env::var_os(NAME).is_some() {
        return Ok(());
    }
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let failed = std::process::Command::new(exe)
        .args(std::env::args_os().skip(1))
        .env(NAME, "glibc.rtld.optional_static_tls=65536")
        .exec();
    Err(format!("cannot start again: {failed}"))
}

/// Towpath's malloc, from the library beside this program or where it is installed.
pub fn towpath() -> Result<Malloc, String> {
    let name = "libtowpath_malloc.so";
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let here = exe.parent().map(PathBuf::from).unwrap_or_default();
    let places =
        [here.join(name), here.join("../lib").join(name), here.join("deps").join(name), here.join("..").join(name)];
    let found = places.into_iter().find(|p| p.is_file());
    let path = found.ok_or("libtowpath_malloc.so is not beside this program: cargo build --release")?;
    let path = CString::new(path.into_os_string().into_encoded_bytes()).map_err(|e| e.to_string())?;
    load("malloc", &path, c"malloc", c"free")
}

/// Resident bytes of this process, in MB.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text.split(' ').nth(1).and_then(|w| w.parse().ok()).unwrap_or(f64::NAN);
    pages * 4096.0 / (1 << 20) as f64
}

/// What a child that writes and frees 256 MB of mixed objects still holds above where it began, in MB.
pub fn resident_after_free(malloc: &Malloc, smoke: bool) -> Option<f64> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors; the child only allocates, sleeps, writes and leaves.
    unsafe {
        if libc::pipe(ends.as_mut_ptr()) != 0 {
            return None;
        }
        let child = libc::fork();
        if child == 0 {
            let mb = churn(malloc, if smoke { 4 << 20 } else { 256 << 20 });
            libc::write(ends[1], (&raw const mb).cast(), 8);
            libc::_exit(0);
        }
        libc::close(ends[1]);
        let mut mb = 0f64;
        let got = libc::read(ends[0], (&raw mut mb).cast(), 8);
        libc::close(ends[0]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        (child > 0 && got == 8).then_some(mb)
    }
}

fn churn(malloc: &Malloc, bytes: usize) -> f64 {
    let before = resident();
    let sizes = [64usize, 200, 1 << 10, 4 << 10, 20 << 10, 64 << 10, 1 << 20];
    let mut held = Vec::with_capacity(bytes / 64);
    for len in sizes {
        for _ in 0..bytes / sizes.len() / len {
            let p = malloc.alloc(len);
            // SAFETY: a fresh object of `len` bytes.
            unsafe { p.write_bytes(1, len) };
            held.push(p);
        }
    }
    for p in held.drain(..) {
        malloc.free(p);
    }
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        for k in 0..2000 {
            malloc.free(malloc.alloc(64 + k));
        }
    }
    drop(held);
    resident() - before
}
