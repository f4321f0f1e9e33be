//! `towpath net`: a link to try things on, made and removed whole.

use clap::Subcommand;
use std::process::ExitCode;
use towpath_device::trylink::{FAR_V4, FAR_V6, NEAR_V4, NEAR_V6, PREFIX_V4, PREFIX_V6, TryLink, TryLinkConfig};

/// Make or remove a link to try things on
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a veth pair: one end bare for Towpath, the other with addresses in a network namespace of its own
    Up {
        /// Names the namespace and, with 0 and 1 behind it, the interfaces
        #[arg(long, default_value = "towpath")]
        name: String,
        /// Largest IP packet in bytes
        #[arg(long, default_value_t = 1500)]
        mtu: u32,
        /// Put Towpath's end into a second namespace, NAME-near, instead of this one
        #[arg(long)]
        near_namespace: bool,
        /// Leave the far end's checksum and segmentation offload on (for packet; xdp would see unfinished checksums)
        #[arg(long)]
        offloads: bool,
    },
    /// Remove exactly what `up` made
    Down {
        /// The name given to `up`
        #[arg(long, default_value = "towpath")]
        name: String,
    },
    /// Name the links that are up
    List,
}

/// Does it.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    match &args.action {
        Action::Up { name, mtu, near_namespace, offloads } => {
            let config = TryLinkConfig {
                name: name.clone(),
                near_namespace: *near_namespace,
                mtu: *mtu,
                far_offloads: *offloads,
            };
            let link = TryLink::up(&config).map_err(|e| e.to_string())?;
            explain(&link);
        }
        Action::Down { name } => {
            TryLink::load(name).and_then(|link| link.down()).map_err(|e| e.to_string())?;
            println!("{name} is down; nothing of it is left");
        }
        Action::List => TryLink::list().iter().for_each(|name| println!("{name}")),
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(link: &TryLink) {
    let TryLink { name, near_interface, far_interface, near_namespace, .. } = link;
    let place = near_namespace.as_ref().map_or("this namespace".to_string(), |n| format!("namespace {n}"));
    println!("{name} is up");
    println!("  {near_interface} in {place}: for Towpath, meant for {NEAR_V4}/{PREFIX_V4} and {NEAR_V6}/{PREFIX_V6}");
    println!("  {far_interface} in namespace {name}: the kernel's, with {FAR_V4}/{PREFIX_V4} and {FAR_V6}/{PREFIX_V6}");
    println!("try: ip netns exec {name} ping {NEAR_V4}   while Towpath serves on {near_interface}");
    println!("end: towpath net down --name {name}");
}
