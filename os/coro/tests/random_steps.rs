//! Random steps with fixed seeds beside a model.
#![cfg(not(loom))]

mod model;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

#[test]
fn scheduler_does_what_the_model_says() {
    let seeds = if std::env::var_os("TOWPATH_SOAK").is_some() { 20_000 } else { 100 };
    for seed in 0..seeds {
        let mut bytes = [0; 1000];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
        if let Err(panic) = std::panic::catch_unwind(|| model::run(&bytes)) {
            eprintln!("replay with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
