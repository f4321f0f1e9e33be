//! How much memory each protection domain's pool deserves (CBUF paper, section 4).
//!
//! A policy looks at each pool once a period: how many pages it has, how often its domain allocated, how long it was
//! blocked or collecting. From that a *predictor* says what size the pool should have next, by itself; then the policy
//! fits the wishes of all pools under the memory there is. Both are pure: the daemon, the tests and the benchmark run
//! the same code.

use std::collections::HashMap;

/// Names a pool for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// What one pool did in the last period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Which pool.
    pub pool: PoolId,
    /// Its size now, in pages.
    pub pages: u64,
    /// The most pages it had in use at once in the period.
    pub pages_used_max: u64,
    /// Allocations in the period, in pages.
    pub pages_requested: u64,
    /// Share of the period its domain was blocked for memory or collecting, 0 to 1.
    pub blocked: f64,
    /// Higher is served first by [`Priority`].
    pub priority: u8,
    /// The share of time this pool's domain may be blocked, if it was promised one (used by [`Qos`]).
    pub blocked_target: Option<f64>,
}

/// A memory policy: sizes for the next period, in pages, one a sample in the samples' order.
///
/// The sum never exceeds `pages_limit`, and no pool gets less than [`PAGES_MIN`] unless the limit itself is smaller
/// than that for all.
pub trait Policy {
    /// The name used in configuration.
    fn name(&self) -> &'static str;
    /// Plans the next period.
    fn plan(&mut self, pages_limit: u64, samples: &[Sample]) -> Vec<u64>;
}

/// No pool is starved below this many pages: one buffer being filled, one on its way, two being read.
pub const PAGES_MIN: u64 = 4;

/// Below this share of blocked time a pool is content.
const BLOCKED_CONTENT: f64 = 0.001;
/// Two shares of blocked time nearer than this are the same.
const BLOCKED_SAME: f64 = 0.002;

/// The policy of that name, as in a configuration file.
///
/// # Errors
/// The names there are, if `name` is none of them.
pub fn by_name(name: &str) -> Result<Box<dyn Policy + Send>, String> {
    match name {
        "max-throughput" => Ok(Box::new(MaxThroughput::default())),
        "max-throughput-limited" => Ok(Box::new(MaxThroughputLimited::default())),
        "priority" => Ok(Box::new(Priority::default())),
        "qos" => Ok(Box::new(Qos::default())),
        _ => Err(format!(
            "there is no memory policy '{name}'; there are max-throughput, max-throughput-limited, priority and qos"
        )),
    }
}

/// Predicts the size at which a pool's blocked time no longer falls: the paper's "minimise total blocking/GC time".
#[derive(Clone, Debug, Default)]
pub struct Minimiser {
    last: HashMap<PoolId, Memory>,
}

/// What the minimiser remembers of a pool.
#[derive(Clone, Copy, Debug)]
struct Memory {
    pages: u64,
    requested: u64,
    blocked: f64,
    step: u64,
}

impl Minimiser {
    /// The size the pool should have next, whatever the others want.
    pub fn wish(&mut self, sample: &Sample) -> u64 {
        let Some(last) = self.last.get(&sample.pool).copied() else {
            let step = (sample.pages / 4).max(1);
            let wish = if sample.blocked > BLOCKED_CONTENT { sample.pages + step } else { sample.pages };
            self.remember(sample, step);
            return wish.max(PAGES_MIN);
        };
        let grew = sample.pages > last.pages;
        let shrank = sample.pages < last.pages;
        let more_requests = sample.pages_requested > last.requested + last.requested / 16;
        let fewer_requests = sample.pages_requested + last.requested / 16 < last.requested;
        let fell = sample.blocked + BLOCKED_SAME < last.blocked;
        let rose = sample.blocked > last.blocked + BLOCKED_SAME;
        let mut step = last.step;
        let wish = if sample.blocked <= BLOCKED_CONTENT {
            // Content: give back an eighth of what was never in use.
            sample.pages - sample.pages.saturating_sub(sample.pages_used_max) / 8
        } else if fell && grew {
            // (1) more memory helped: the same again, or more while much of the time is still lost.
            step = (sample.pages - last.pages).max((sample.pages as f64 * sample.blocked / 2.0) as u64);
            sample.pages + step
        } else if fell && fewer_requests {
            // (2) less was asked for: stay.
            sample.pages
        } else if rose && shrank {
            // (3) shrinking hurt: back to what it was.
            last.pages
        } else if rose && more_requests {
            // (4) more was asked for: grow in proportion.
            let ratio = sample.pages_requested as f64 / last.requested.max(1) as f64;
            (sample.pages as f64 * ratio.min(4.0)).ceil() as u64
        } else {
            // Blocked as before: probe upwards, faster each time it goes on.
            step = (step * 2).min(sample.pages.max(1));
            sample.pages + step
        };
        if sample.blocked <= BLOCKED_CONTENT {
            step = (sample.pages / 4).max(1);
        }
        self.remember(sample, step);
        wish.max(PAGES_MIN)
    }

    fn remember(&mut self, sample: &Sample, step: u64) {
        let memory = Memory {
            pages: sample.pages,
            requested: sample.pages_requested,
            blocked: sample.blocked,
            step: step.max(1),
        };
        self.last.insert(sample.pool, memory);
    }

    /// Forgets pools that are no longer sampled.
    fn keep_only(&mut self, samples: &[Sample]) {
        self.last.retain(|pool, _| samples.iter().any(|s| s.pool == *pool));
    }
}

/// Predicts the size at which a pool is blocked for just the promised share of time: the paper's binary search.
#[derive(Clone, Debug, Default)]
pub struct TargetSearch {
    /// Averages of sizes that blocked too little and too much.
    bounds: HashMap<PoolId, (Option<f64>, Option<f64>)>,
}

impl TargetSearch {
    /// The size that should bring the pool's blocked share to `target`.
    pub fn wish(&mut self, sample: &Sample, target: f64) -> u64 {
        /// Weight of the newest size in the averages: old sizes fade as the load changes.
        const FADE: f64 = 0.5;
        let tolerance = (target * 0.1).max(BLOCKED_SAME);
        let (large, small) = self.bounds.entry(sample.pool).or_default();
        let pages = sample.pages as f64;
        let blend = |old: &mut Option<f64>| *old = Some(old.map_or(pages, |o| o + (pages - o) * FADE));
        let wish = if sample.blocked > target + tolerance {
            blend(small);
            match *large {
                Some(large) if large > pages => (pages + large) / 2.0,
                // Nothing larger is known to be enough: double, or more where it is far off.
                _ => pages * (sample.blocked / target.max(BLOCKED_SAME)).clamp(1.25, 2.0),
            }
        } else if sample.blocked + tolerance < target {
            blend(large);
            match *small {
                Some(small) if small < pages => (pages + small) / 2.0,
                _ => pages * 0.75,
            }
        } else {
            pages
        };
        // A bound on the wrong side is out of date: the load has changed.
        if large.is_some_and(|l| sample.blocked > target + tolerance && l <= pages) {
            *large = None;
        }
        if small.is_some_and(|s| sample.blocked + tolerance < target && s >= pages) {
            *small = None;
        }
        (wish.round() as u64).max(PAGES_MIN)
    }
}

/// Most throughput where memory suffices: each pool gets its wish, first come first served should they not fit.
#[derive(Clone, Debug, Default)]
pub struct MaxThroughput {
    minimiser: Minimiser,
}

/// Most throughput under a limit: where the wishes exceed the memory, each shrinks in proportion.
#[derive(Clone, Debug, Default)]
pub struct MaxThroughputLimited {
    minimiser: Minimiser,
}

/// Wishes are granted by priority, the highest whole, the others from what remains.
#[derive(Clone, Debug, Default)]
pub struct Priority {
    minimiser: Minimiser,
}

/// Promised shares of blocked time are kept first; what remains goes to the others in proportion to their wishes.
#[derive(Clone, Debug, Default)]
pub struct Qos {
    minimiser: Minimiser,
    search: TargetSearch,
}

impl Policy for MaxThroughput {
    fn name(&self) -> &'static str {
        "max-throughput"
    }

    fn plan(&mut self, pages_limit: u64, samples: &[Sample]) -> Vec<u64> {
        self.minimiser.keep_only(samples);
        let wishes: Vec<u64> = samples.iter().map(|s| self.minimiser.wish(s)).collect();
        let order: Vec<usize> = (0..samples.len()).collect();
        grant_in_order(pages_limit, &wishes, &order)
    }
}

impl Policy for MaxThroughputLimited {
    fn name(&self) -> &'static str {
        "max-throughput-limited"
    }

    fn plan(&mut self, pages_limit: u64, samples: &[Sample]) -> Vec<u64> {
        self.minimiser.keep_only(samples);
        let wishes: Vec<u64> = samples.iter().map(|s| self.minimiser.wish(s)).collect();
        grant_in_proportion(pages_limit, &wishes)
    }
}

impl Policy for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn plan(&mut self, pages_limit: u64, samples: &[Sample]) -> Vec<u64> {
        self.minimiser.keep_only(samples);
        let wishes: Vec<u64> = samples.iter().map(|s| self.minimiser.wish(s)).collect();
        let mut order: Vec<usize> = (0..samples.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(samples[i].priority));
        grant_in_order(pages_limit, &wishes, &order)
    }
}

impl Policy for Qos {
    fn name(&self) -> &'static str {
        "qos"
    }

    fn plan(&mut self, pages_limit: u64, samples: &[Sample]) -> Vec<u64> {
        self.minimiser.keep_only(samples);
        self.search.bounds.retain(|pool, _| samples.iter().any(|s| s.pool == *pool));
        let wishes: Vec<u64> = samples
            .iter()
            .map(|s| match s.blocked_target {
                Some(target) => self.search.wish(s, target),
                None => self.minimiser.wish(s),
            })
            .collect();
        let promised: Vec<usize> = (0..samples.len()).filter(|&i| samples[i].blocked_target.is_some()).collect();
        let others: Vec<usize> = (0..samples.len()).filter(|&i| samples[i].blocked_target.is_none()).collect();
        let mut granted = vec![0; samples.len()];
        let floor = floor(pages_limit, samples.len());
        let for_promised = pages_limit - floor * others.len() as u64;
        share(for_promised, &wishes, &promised, &mut granted);
        let taken: u64 = promised.iter().map(|&i| granted[i]).sum();
        share(pages_limit - taken, &wishes, &others, &mut granted);
        granted
    }
}

/// What every pool gets at least: [`PAGES_MIN`], or an equal part of a limit too small for that.
fn floor(pages_limit: u64, pools: usize) -> u64 {
    if pools == 0 { 0 } else { PAGES_MIN.min(pages_limit / pools as u64) }
}

/// Grants wishes whole in `order` while memory lasts, never leaving a later pool less than its floor.
fn grant_in_order(pages_limit: u64, wishes: &[u64], order: &[usize]) -> Vec<u64> {
    let floor = floor(pages_limit, wishes.len());
    let mut left = pages_limit - floor * wishes.len() as u64;
    let mut granted = vec![floor; wishes.len()];
    for &i in order {
        let more = wishes[i].saturating_sub(floor).min(left);
        granted[i] += more;
        left -= more;
    }
    granted
}

/// Shrinks all wishes by the same factor where they exceed the limit.
fn grant_in_proportion(pages_limit: u64, wishes: &[u64]) -> Vec<u64> {
    let mut granted = vec![0; wishes.len()];
    let all: Vec<usize> = (0..wishes.len()).collect();
    share(pages_limit, wishes, &all, &mut granted);
    granted
}

/// Grants the pools `which` their wishes, or in proportion where `pages` do not suffice.
fn share(pages: u64, wishes: &[u64], which: &[usize], granted: &mut [u64]) {
    let sum: u64 = which.iter().map(|&i| wishes[i]).sum();
    let floor = floor(pages, which.len());
    if sum <= pages {
        which.iter().for_each(|&i| granted[i] = wishes[i]);
        return;
    }
    let spare = pages - floor * which.len() as u64;
    let above = |i: usize| wishes[i].saturating_sub(floor);
    let sum_above: u64 = which.iter().map(|&i| above(i)).sum();
    for &i in which {
        let part = (u128::from(above(i)) * u128::from(spare)).checked_div(u128::from(sum_above)).unwrap_or(0);
        granted[i] = floor + part as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    /// A domain that needs `need` pages never to block; short of that it is blocked in proportion.
    struct Domain {
        need: u64,
        pages: u64,
        priority: u8,
        target: Option<f64>,
    }

    impl Domain {
        fn blocked(&self) -> f64 {
            self.need.saturating_sub(self.pages) as f64 / self.need as f64
        }

        fn sample(&self, pool: u32) -> Sample {
            Sample {
                pool: PoolId(pool),
                pages: self.pages,
                pages_used_max: self.need.min(self.pages),
                pages_requested: self.need * 10,
                blocked: self.blocked(),
                priority: self.priority,
                blocked_target: self.target,
            }
        }
    }

    fn settle(policy: &mut dyn Policy, limit: u64, domains: &mut [Domain], periods: usize) {
        for _ in 0..periods {
            let samples: Vec<Sample> = (0..).zip(domains.iter()).map(|(i, d)| d.sample(i)).collect();
            let plan = policy.plan(limit, &samples);
            assert!(plan.iter().sum::<u64>() <= limit, "{} grants more than there is", policy.name());
            domains.iter_mut().zip(plan).for_each(|(d, pages)| d.pages = pages);
        }
    }

    fn domain(need: u64) -> Domain {
        Domain { need, pages: 16, priority: 0, target: None }
    }

    #[test]
    fn max_throughput_with_enough_memory_ends_all_blocking() {
        let mut domains = [domain(100), domain(1000), domain(20)];
        settle(&mut MaxThroughput::default(), 10_000, &mut domains, 60);
        for d in &domains {
            assert!(d.blocked() <= 0.01, "{} of {} pages", d.pages, d.need);
            assert!(d.pages <= d.need * 3, "{} pages hoarded for a need of {}", d.pages, d.need);
        }
    }

    #[test]
    fn limited_policy_short_of_memory_shrinks_all_in_proportion() {
        let mut domains = [domain(1000), domain(1000)];
        settle(&mut MaxThroughputLimited::default(), 1000, &mut domains, 60);
        assert!(domains[0].pages.abs_diff(domains[1].pages) < 250, "{} {}", domains[0].pages, domains[1].pages);
    }

    #[test]
    fn priority_policy_short_of_memory_serves_the_higher_first() {
        let mut domains = [domain(800), Domain { priority: 9, ..domain(800) }];
        settle(&mut Priority::default(), 1000, &mut domains, 60);
        assert!(domains[1].blocked() <= 0.01, "the higher priority is blocked {}", domains[1].blocked());
        assert!(domains[0].pages >= PAGES_MIN && domains[0].blocked() > 0.5);
    }

    #[test]
    fn qos_policy_holds_promised_shares_of_blocked_time() {
        let mut domains = [
            Domain { target: Some(0.10), ..domain(1000) },
            Domain { target: Some(0.30), ..domain(1000) },
            domain(5000),
        ];
        settle(&mut Qos::default(), 2500, &mut domains, 60);
        assert!((domains[0].blocked() - 0.10).abs() < 0.03, "promised 10 %, got {}", domains[0].blocked());
        assert!((domains[1].blocked() - 0.30).abs() < 0.05, "promised 30 %, got {}", domains[1].blocked());
    }

    #[test]
    fn every_policy_under_random_samples_keeps_limit_and_floor() {
        let mut rng = SmallRng::seed_from_u64(7);
        for name in ["max-throughput", "max-throughput-limited", "priority", "qos"] {
            let mut policy = by_name(name).expect("the policy exists");
            for round in 0..2_000 {
                let n = rng.random_range(0..8);
                let limit = rng.random_range(0..5_000);
                let samples: Vec<Sample> = (0..n).map(|i| random_sample(&mut rng, i)).collect();
                let plan = policy.plan(limit, &samples);
                assert_eq!(plan.len(), samples.len());
                assert!(plan.iter().sum::<u64>() <= limit, "{name} round {round}");
                if limit >= PAGES_MIN * u64::from(n) {
                    assert!(plan.iter().all(|&p| p >= PAGES_MIN), "{name} round {round}: {plan:?} of {limit}");
                }
            }
        }
    }

    fn random_sample(rng: &mut SmallRng, pool: u32) -> Sample {
        let pages = rng.random_range(0..3_000);
        Sample {
            pool: PoolId(pool),
            pages,
            pages_used_max: rng.random_range(0..=pages),
            pages_requested: rng.random_range(0..100_000),
            blocked: rng.random_range(0.0..1.0),
            priority: rng.random_range(0..4),
            blocked_target: rng.random_bool(0.5).then(|| rng.random_range(0.0..0.5)),
        }
    }

    #[test]
    fn unknown_policy_name_is_an_error_that_lists_them() {
        let error = by_name("fair").err().expect("there is no such policy");
        assert!(error.contains("priority"), "{error}");
    }
}
