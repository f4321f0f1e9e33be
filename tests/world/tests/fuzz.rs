//! A short campaign with every `cargo test`; `TOWPATH_SOAK=1` makes it long, and
//! `cargo run --release -p towpath-world --example fuzz -- SEED FRAMES` runs any.

use towpath_world::campaign::campaign;

#[test]
fn mutated_conversations_neither_panic_nor_loop_nor_leak() {
    let frames = if std::env::var_os("TOWPATH_SOAK").is_some() { 20_000_000 } else { 200_000 };
    let outcome = campaign(1, frames);
    assert!(outcome.connections > 100, "conversations must get somewhere: {outcome:?}");
}
