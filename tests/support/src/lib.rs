//! What the tests of every crate share.
//!
//! A test that cannot run here (no root, no package, no device) says so with [`skip`]. With `TOWPATH_REQUIRE=all`
//! in the environment a skip is a failure unless `tests/skips.toml` lists it with its reason, so that a green check
//! means the tests ran.
#![forbid(unsafe_code)]

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The file that lists the permitted skips: `[[skip]] test = "..." reason = "..."`.
#[derive(Deserialize)]
struct Skips {
    #[serde(default)]
    skip: Vec<Skip>,
}

/// One permitted skip.
#[derive(Deserialize)]
struct Skip {
    test: String,
    reason: String,
}

/// The root of the source tree.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("tests/support lies two folders below the root").to_path_buf()
}

/// Records that `test` does not run here because of `why`; the caller returns right after.
///
/// # Panics
/// With `TOWPATH_REQUIRE=all`, unless `tests/skips.toml` lists `test`.
pub fn skip(test: &str, why: &str) {
    if std::env::var("TOWPATH_REQUIRE").as_deref() == Ok("all") && !permitted(test) {
        panic!("{test} was skipped ({why}) and tests/skips.toml does not list it");
    }
    eprintln!("skipped {test}: {why}");
}

fn permitted(test: &str) -> bool {
    let text = std::fs::read_to_string(root().join("tests/skips.toml")).unwrap_or_default();
    let skips: Skips = toml::from_str(&text).expect("tests/skips.toml is well-formed");
    skips.skip.iter().any(|s| s.test == test && !s.reason.is_empty())
}

/// A name no other test of this or a concurrent run uses: `prefix-PID-N`.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder of its own that is removed when dropped, also on panic.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates the folder below the system's folder for temporary files.
    ///
    /// # Panics
    /// If the folder cannot be created.
    #[allow(clippy::new_without_default, reason = "creating a folder is no default value")]
    pub fn new() -> TempDir {
        let path = std::env::temp_dir().join(unique("towpath-test"));
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()));
        TempDir(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path inside it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process that is killed and reaped when dropped, also on panic.
pub struct Child(pub std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The path of a program on PATH, if it is there.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.is_file())
}
