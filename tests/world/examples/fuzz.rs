//! `fuzz SEED FRAMES`: a campaign of mutated conversations against the stack; a failure names its seed.

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let (Some(Ok(seed)), Some(Ok(frames))) = (args.next(), args.next()) else {
        eprintln!("usage: fuzz SEED FRAMES");
        std::process::exit(2);
    };
    let start = std::time::Instant::now();
    let outcome = towpath_world::campaign::campaign(seed, frames);
    println!("{outcome:?} in {:.1} s", start.elapsed().as_secs_f64());
}
