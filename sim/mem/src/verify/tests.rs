use super::*;

#[test]
fn random_accesses_of_two_cores_return_what_was_written() {
    for seed in 0..4 {
        let outcome = random_test(&small(2), seed, 20_000, Mutation::None);
        assert!(outcome.errors.is_empty(), "seed {seed}: {:#?}", outcome.errors);
        assert!(outcome.checked > 5_000 && outcome.commands > 1_000, "{outcome:?}");
    }
}

#[test]
fn random_accesses_of_eight_cores_return_what_was_written() {
    let mut met = std::collections::BTreeMap::new();
    for seed in 100..103 {
        let outcome = random_test(&small(8), seed, 40_000, Mutation::None);
        assert!(outcome.errors.is_empty(), "seed {seed}: {:#?}", outcome.errors);
        for (name, count) in coverage_report(&outcome.coverage) {
            *met.entry(name).or_insert(0) += count;
        }
    }
    let unmet: Vec<_> = met.iter().filter(|(_, n)| **n == 0).collect();
    assert!(unmet.is_empty(), "transitions never met: {unmet:?}");
}

#[test]
fn random_test_of_one_seed_repeats_to_the_tick() {
    let one = random_test(&small(4), 7, 10_000, Mutation::None);
    let two = random_test(&small(4), 7, 10_000, Mutation::None);
    assert_eq!((one.ticks, one.coverage, one.commands), (two.ticks, two.coverage, two.commands));
}

#[test]
fn dram_commands_of_random_traffic_break_no_rule() {
    for dram in [Config::table1().dram, Config::rocket().dram, small(1).dram] {
        for seed in 0..3 {
            let outcome = dram_test(&dram, seed, 20_000, Mutation::None);
            assert!(outcome.errors.is_empty(), "seed {seed}: {:#?}", outcome.errors);
            assert!(outcome.commands > 20_000);
        }
    }
}

#[test]
fn random_test_catches_every_planted_error() {
    let missed: Vec<Mutation> = Mutation::ALL.iter().copied().filter(|&m| catches(m, 12).is_none()).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
