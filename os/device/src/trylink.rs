//! A link to try things on: a veth pair whose far end belongs to the kernel of a namespace of its own, with addresses,
//! and whose near end is bare, for a device of ours. Everything created is written down first in a state file, so
//! that it can be removed whole and nothing else ever is.

use crate::Error;
use crate::link::{self, Namespace};
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TryLinkConfig {
    /// Names the namespace and, with `0` and `1` behind it, the interfaces: 1 to 13 of `a-z 0-9 -`.
    pub name: String,
    /// Puts the near end into a second namespace `NAME-near` instead of the caller's.
    pub near_namespace: bool,
    /// Largest IP packet of both ends, in bytes.
    pub mtu: u32,
    /// Leaves the far end's transmit checksum and segmentation offload on. AF_XDP then receives unfinished checksums;
    /// only devices with a virtio-net header can tell.
    pub far_offloads: bool,
}

impl TryLinkConfig {
    /// The defaults of `towpath net up` for a link called `name`.
    pub fn new(name: impl Into<String>) -> TryLinkConfig {
        TryLinkConfig { name: name.into(), near_namespace: false, mtu: 1500, far_offloads: false }
    }
}

/// A link that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TryLink {
    /// Its name, which is also the far namespace's.
    pub name: String,
    /// Namespace of the near end; `None` is the creator's.
    pub near_namespace: Option<String>,
    /// Interface for a device of ours; it has no kernel addresses.
    pub near_interface: String,
    /// Interface of the namespace's kernel.
    pub far_interface: String,
    /// Proof of identity: the namespace's inode.
    far_inode: u64,
    near_inode: u64,
    near_index: u32,
}

/// IPv4 address and prefix the far kernel has; ours is [`NEAR_V4`].
pub const FAR_V4: &str = "10.77.0.2";
/// IPv4 address meant for the near end's stack.
pub const NEAR_V4: &str = "10.77.0.1";
/// IPv6 address of the far kernel.
pub const FAR_V6: &str = "fd77::2";
/// IPv6 address meant for the near end's stack.
pub const NEAR_V6: &str = "fd77::1";
/// Prefix lengths of the two networks.
pub const PREFIX_V4: u8 = 24;
/// See [`PREFIX_V4`].
pub const PREFIX_V6: u8 = 64;

const STATE_DIR: &str = "/run/towpath/net";

fn state_path(name: &str) -> PathBuf {
    Path::new(STATE_DIR).join(name)
}

fn ip(arguments: &[&str]) -> Result<(), Error> {
    let what = || format!("ip {}", arguments.join(" "));
    let out =
        Command::new("ip").args(arguments).output().map_err(|e| Error::io(what() + " (is iproute2 there?)", e))?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(Error::io(what(), std::io::Error::other(text.trim().to_string())))
}

fn inode(namespace: &str) -> u64 {
    std::fs::metadata(format!("/run/netns/{namespace}")).map_or(0, |m| m.ino())
}

fn valid_name(name: &str) -> Result<(), Error> {
    let fine = !name.is_empty()
        && name.len() <= 13
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-');
    if fine {
        Ok(())
    } else {
        Err(Error::Config(format!("`{name}` cannot name a link: use 1 to 13 of a-z, 0-9 and -")))
    }
}

impl TryLink {
    /// Creates the link. What exists already is never touched: any name in use is an error, and a failure half way
    /// removes what this call made.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad or used name, [`Error::System`] with the failed command.
    pub fn up(config: &TryLinkConfig) -> Result<TryLink, Error> {
        valid_name(&config.name)?;
        std::fs::create_dir_all(STATE_DIR).map_err(|e| Error::io(format!("creating {STATE_DIR}"), e))?;
        // The state file is the claim on the name: creating it fails if another call has it.
        let path = state_path(&config.name);
        std::fs::File::create_new(&path).map_err(|e| {
            let text =
                format!("`{}` is up already, or being made ({}); take it down first", config.name, path.display());
            if e.kind() == std::io::ErrorKind::AlreadyExists { Error::Config(text) } else { Error::io(text, e) }
        })?;
        let mut undo = Undo { name: &config.name, namespaces: Vec::new(), link: None, armed: true };
        let link = build(config, &mut undo)?;
        std::fs::write(&path, link.to_text()).map_err(|e| Error::io(format!("writing {}", path.display()), e))?;
        undo.armed = false;
        Ok(link)
    }

    /// Reads back a link that is up.
    ///
    /// # Errors
    /// [`Error::Config`] if no link of that name was made by [`up`](Self::up).
    pub fn load(name: &str) -> Result<TryLink, Error> {
        valid_name(name)?;
        let path = state_path(name);
        let text = std::fs::read_to_string(&path).map_err(|_| {
            Error::Config(format!("no link `{name}` was made by `towpath net up` ({} is missing)", path.display()))
        })?;
        TryLink::from_text(name, &text)
            .ok_or_else(|| Error::Config(format!("{} is damaged; remove the link by hand with `ip`", path.display())))
    }

    /// Names of all links that are up.
    pub fn list() -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(STATE_DIR)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Removes exactly what [`up`](Self::up) made; what has been replaced since by something of the same name stays.
    ///
    /// # Errors
    /// [`Error::System`] with the failed command; the state file stays so that it can be tried again.
    pub fn down(&self) -> Result<(), Error> {
        if self.near_index != 0
            && self.near_namespace.is_none()
            && link::index(&self.near_interface).ok() == Some(self.near_index)
        {
            ip(&["link", "del", &self.near_interface])?;
        }
        if let Some(near) = &self.near_namespace
            && self.near_inode != 0
            && inode(near) == self.near_inode
        {
            // Deleting one end deletes the pair at once, while a namespace vanishes only when its last user does.
            let _ = ip(&["-n", near, "link", "del", &self.near_interface]);
            ip(&["netns", "del", near])?;
        }
        if self.far_inode != 0 && inode(&self.name) == self.far_inode {
            ip(&["netns", "del", &self.name])?;
        }
        let path = state_path(&self.name);
        std::fs::remove_file(&path).map_err(|e| Error::io(format!("removing {}", path.display()), e))
    }

    /// Moves this thread to where the near interface is, until the guard drops.
    ///
    /// # Errors
    /// [`Error::System`] if the namespace is gone.
    pub fn enter_near(&self) -> Result<Option<Namespace>, Error> {
        self.near_namespace.as_deref().map(Namespace::enter).transpose()
    }

    /// Moves this thread to the far end's namespace, until the guard drops.
    ///
    /// # Errors
    /// [`Error::System`] if the namespace is gone.
    pub fn enter_far(&self) -> Result<Namespace, Error> {
        Namespace::enter(&self.name)
    }

    /// Gives the near end's kernel the addresses meant for a stack of ours: for baselines of kernel to kernel.
    ///
    /// # Errors
    /// [`Error::System`] with the failed command.
    pub fn give_near_kernel_addresses(&self) -> Result<(), Error> {
        let place: Vec<&str> = self.near_namespace.iter().flat_map(|n| ["-n", n.as_str()]).collect();
        let v4 = format!("{NEAR_V4}/{PREFIX_V4}");
        ip(&[&place[..], &["addr", "add", &v4, "dev", &self.near_interface]].concat())?;
        {
            let _there = self.enter_near()?;
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.near_interface), "0");
        }
        let v6 = format!("{NEAR_V6}/{PREFIX_V6}");
        // A kernel without IPv6 still makes a link for IPv4.
        let _ = ip(&[&place[..], &["-6", "addr", "add", &v6, "dev", &self.near_interface, "nodad"]].concat());
        Ok(())
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let near = self.near_namespace.as_deref().unwrap_or("");
        let _ = writeln!(
            text,
            "far_inode={}\nnear_inode={}\nnear_index={}",
            self.far_inode, self.near_inode, self.near_index
        );
        let _ = writeln!(text, "near_namespace={near}");
        text
    }

    fn from_text(name: &str, text: &str) -> Option<TryLink> {
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        Some(TryLink {
            name: name.to_string(),
            near_namespace: field("near_namespace").filter(|n| !n.is_empty()).map(str::to_string),
            near_interface: format!("{name}0"),
            far_interface: format!("{name}1"),
            far_inode: field("far_inode")?.parse().ok()?,
            near_inode: field("near_inode")?.parse().ok()?,
            near_index: field("near_index")?.parse().ok()?,
        })
    }
}

/// Removes what a failed `up` had made.
struct Undo<'a> {
    name: &'a str,
    namespaces: Vec<String>,
    link: Option<String>,
    armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Some(link) = &self.link {
            let _ = ip(&["link", "del", link]);
        }
        for namespace in &self.namespaces {
            let _ = ip(&["netns", "del", namespace]);
        }
        let _ = std::fs::remove_file(state_path(self.name));
    }
}

fn build(config: &TryLinkConfig, undo: &mut Undo<'_>) -> Result<TryLink, Error> {
    let name = config.name.as_str();
    let (near, far) = (format!("{name}0"), format!("{name}1"));
    let near_namespace = config.near_namespace.then(|| format!("{name}-near"));
    for namespace in near_namespace.iter().map(String::as_str).chain([name]) {
        ip(&["netns", "add", namespace])?;
        undo.namespaces.push(namespace.to_string());
    }
    let mtu = config.mtu.to_string();
    let one_queue = ["numrxqueues", "1", "numtxqueues", "1"];
    let mut add = vec!["link", "add", near.as_str(), "mtu", mtu.as_str()];
    add.extend(near_namespace.iter().flat_map(|n| ["netns", n.as_str()]));
    add.extend(one_queue);
    add.extend(["type", "veth", "peer", "name", far.as_str(), "mtu", mtu.as_str(), "netns", name]);
    add.extend(one_queue);
    ip(&add)?;
    if near_namespace.is_none() {
        undo.link = Some(near.clone());
    }
    let far_v4 = format!("{FAR_V4}/{PREFIX_V4}");
    let far_v6 = format!("{FAR_V6}/{PREFIX_V6}");
    ip(&["-n", name, "addr", "add", &far_v4, "dev", &far])?;
    // A kernel without IPv6 still makes a link for IPv4.
    let _ = ip(&["-n", name, "-6", "addr", "add", &far_v6, "dev", &far, "nodad"]);
    ip(&["-n", name, "link", "set", "lo", "up"])?;
    {
        let _there = Namespace::enter(name)?;
        link::set_tx_checksum_offload(&far, config.far_offloads)?;
        link::set_up(&far)?;
    }
    let _there = near_namespace.as_deref().map(Namespace::enter).transpose()?;
    // The near end is ours alone: its kernel shall not announce itself by IPv6.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{near}/disable_ipv6"), "1");
    link::set_up(&near)?;
    Ok(TryLink {
        name: name.to_string(),
        near_inode: near_namespace.as_deref().map_or(0, inode),
        near_index: link::index(&near)?,
        far_inode: inode(name),
        near_namespace: near_namespace.clone(),
        near_interface: near,
        far_interface: far,
    })
}

/// A link that goes down when dropped, also on panic: for tests and benchmarks.
#[derive(Debug)]
pub struct TemporaryLink(TryLink);

impl TemporaryLink {
    /// See [`TryLink::up`]; the name is made unique to this process.
    ///
    /// # Errors
    /// As [`TryLink::up`].
    pub fn up(config: TryLinkConfig) -> Result<TemporaryLink, Error> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{:x}-{number:x}", config.name, std::process::id());
        Ok(TemporaryLink(TryLink::up(&TryLinkConfig { name, ..config })?))
    }
}

impl std::ops::Deref for TemporaryLink {
    type Target = TryLink;

    fn deref(&self) -> &TryLink {
        &self.0
    }
}

impl Drop for TemporaryLink {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            eprintln!("towpath: the link {} stays behind: {error}", self.0.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> bool {
        // SAFETY: a call without arguments.
        unsafe { libc::geteuid() == 0 }
    }

    #[test]
    fn names_that_could_mean_something_else_are_refused() {
        for bad in ["", "-x", "a/b", "../x", "UPPER", "fourteen-chars"] {
            assert!(matches!(TryLink::up(&TryLinkConfig::new(bad)), Err(Error::Config(_))), "{bad:?}");
            assert!(matches!(TryLink::load(bad), Err(Error::Config(_))), "{bad:?}");
        }
    }

    #[test]
    fn link_that_went_up_goes_down_whole_and_cannot_go_up_twice() {
        if !root() {
            return towpath_testing::skip("link_that_went_up_goes_down_whole", "needs root");
        }
        let config = TryLinkConfig { near_namespace: true, ..TryLinkConfig::new("tpu") };
        let link = TemporaryLink::up(config.clone()).unwrap();
        let name = link.name.clone();
        assert_eq!(TryLink::load(&name).unwrap(), *link);
        let again = TryLink::up(&TryLinkConfig { name: name.clone(), ..config });
        assert!(matches!(again, Err(Error::Config(_))), "{again:?}");
        {
            let _far = link.enter_far().unwrap();
            assert!(!link::tx_checksum_offload(&link.far_interface).unwrap());
            assert_eq!(link::driver(&link.far_interface).unwrap(), "veth");
            assert_eq!(link::queues(&link.far_interface).unwrap(), (1, 1));
        }
        assert!(TryLink::load(&name).is_ok(), "the refused second attempt left the first alone");
        drop(link);
        assert_eq!((inode(&name), inode(&format!("{name}-near"))), (0, 0));
        assert!(TryLink::load(&name).is_err());
    }

    #[test]
    fn existing_namespace_is_neither_used_nor_removed() {
        if !root() {
            return towpath_testing::skip("existing_namespace_is_neither_used_nor_removed", "needs root");
        }
        let name = format!("tpx{:x}", std::process::id());
        ip(&["netns", "add", &name]).unwrap();
        let refused = TryLink::up(&TryLinkConfig::new(name.clone()));
        let kept = inode(&name) != 0;
        ip(&["netns", "del", &name]).unwrap();
        assert!(refused.is_err());
        assert!(kept, "up must not remove what it did not make");
        assert!(!state_path(&name).exists());
    }
}
