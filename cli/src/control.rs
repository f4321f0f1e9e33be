//! The control socket of a running server: `towpath stats` reads its counters there.
//!
//! It lies in a folder only its user may enter: `$XDG_RUNTIME_DIR/towpath`, else `towpath-UID` in the system's folder
//! for temporary files; it is named after the process and removed with it.

use std::cell::RefCell;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use towpath_libos::{Address, Queue, Runtime};

/// An open control socket; dropping it removes the file.
pub struct Control(Option<PathBuf>);

impl Control {
    /// Opens it and answers every connection with one JSON object: `{"kind", "pid", "runtime", "server"}`. A server
    /// that cannot have one says so and serves all the same.
    pub fn open(rt: &Runtime, kind: &'static str, counters: impl Fn() -> String + 'static) -> Control {
        match Control::try_open(rt, kind, counters) {
            Ok(path) => Control(Some(path)),
            Err(why) => {
                eprintln!("{kind}: no control socket, so `towpath stats` will not find this server: {why}");
                Control(None)
            }
        }
    }

    fn try_open(rt: &Runtime, kind: &'static str, counters: impl Fn() -> String + 'static) -> Result<PathBuf, String> {
        let folder = folder()?;
        let path = folder.join(format!("{}.sock", std::process::id()));
        // A dead process of the same number may have left one.
        let _ = std::fs::remove_file(&path);
        let address: Address = format!("unix:{}", path.display()).parse().map_err(|e| format!("{e}"))?;
        let listener = rt.listen(&address).map_err(|e| e.to_string())?;
        rt.spawn(answer(rt.clone(), listener, kind, counters)).map_err(|e| e.to_string())?;
        Ok(path)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn answer(rt: Runtime, listener: Queue, kind: &'static str, counters: impl Fn() -> String + 'static) {
    let counters = Rc::new(RefCell::new(counters));
    while let Ok((queue, _)) = listener.accept().await {
        let text = format!(
            "{{\"kind\":\"{kind}\",\"pid\":{},\"runtime\":{},\"server\":{}}}\n",
            std::process::id(),
            runtime_json(&rt),
            counters.borrow()()
        );
        if let Ok(buf) = rt.memory().copy_from(text.as_bytes()) {
            // A reader that does not read costs this coroutine alone.
            let _ = rt.spawn(async move { drop(queue.push(buf).await) });
        }
    }
}

/// The runtime's own counters as one JSON object.
fn runtime_json(rt: &Runtime) -> String {
    let (stats, counted) = (rt.stats(), towpath_cbuf::counters::copied_bytes());
    format!(
        "{{\"libos\":\"{}\",\"waiting\":\"{}\",\"queues\":{},\"tokens\":{},\"coroutines\":{},\"polls\":{},\
         \"sleeps\":{},\"copied_bytes\":{counted}}}",
        rt.libos(),
        rt.waiting(),
        stats.queues,
        stats.tokens,
        stats.coroutines,
        stats.polls,
        stats.sleeps,
    )
}

/// The folder of the control sockets, created if it is missing.
///
/// # Errors
/// It cannot be created, or belongs to someone else or is open to others.
pub fn folder() -> Result<PathBuf, String> {
    let me =
        std::fs::metadata("/proc/self").map_err(|e| format!("cannot tell who this process belongs to: {e}"))?.uid();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("towpath"),
        None => std::env::temp_dir().join(format!("towpath-{me}")),
    };
    create(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    let found = std::fs::symlink_metadata(&folder).map_err(|e| format!("cannot look at {}: {e}", folder.display()))?;
    if !found.is_dir() || found.uid() != me || found.permissions().mode() & 0o077 != 0 {
        return Err(format!("{} is not a folder of this user alone", folder.display()));
    }
    Ok(folder)
}

fn create(folder: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
