//! One test a script.

use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cases")
}

fn run(name: &str) {
    let text = std::fs::read_to_string(folder().join(format!("{name}.pkt"))).expect("the script is readable");
    if let Err(error) = towpath_scripts::check(&text) {
        panic!("cases/{name}.pkt {error}");
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_script_in_the_folder_is_run() {
            let listed = [$(stringify!($name)),*];
            for entry in std::fs::read_dir(folder()).expect("the folder of scripts") {
                let path = entry.expect("an entry").path();
                let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_string();
                assert!(listed.contains(&name.as_str()), "{name} is not run: list it");
            }
        }
    };
}

cases! {
    ack_delayed
    ack_of_unsent
    ack_too_old_challenge
    close_active
    close_fin_with_data
    close_half
    close_passive
    close_simultaneous
    close_then_data_reset
    close_unread_reset
    connect_bad_ack
    connect_icmp_refused
    connect_refused
    connect_timeout
    cork
    ecn
    ecn_not_offered
    fin_out_of_order
    handshake_active
    handshake_passive
    initial_window
    keepalive
    keepalive_answered
    loss_gives_up
    loss_limited_transmit
    loss_newreno
    loss_reordering
    loss_sack
    loss_spurious_undone
    loss_tail_probe
    loss_timeout
    mss_default
    mss_tiny_refused
    nagle
    out_of_order
    overlap_trimmed
    partial_ack_trims
    path_black_hole
    path_mtu
    path_mtu_ipv6
    reset_exact
    reset_in_window_challenge
    simultaneous_open
    stranger_reset
    syn_in_window_challenge
    synack_bad_ack_reset
    synack_retransmitted
    time_wait_reopened
    timestamps_echo
    timestamps_paws
    urgent_ignored
    user_timeout
    window_beyond
    window_silly
    window_update
    window_zero_probed
}
