//! The host tier: the pools that a cached prefix needs, once more in host memory, in proportion to those on the device.
//! The device's own plan is in `plan.rs`; how much host memory there is, is asked in Python.

use std::num::NonZeroU64;

use crate::allocator::Allocator;
use crate::error::{Error, Result};
use crate::page::{Granularity, MAX_COUNT};
use crate::plan::{Plan, Planner};
use crate::pool::{Pool, last_true};
use crate::ratio::Ratio;

/// The host pools of one device plan, ready to be sized. Every pipeline stage has the same slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostTier {
    stages: Vec<Vec<HostPool>>,
    /// Tokens of the device plan: the ratio of host to device grows in steps of one of them.
    device_tokens: u64,
    allocator: Allocator,
}

/// A pool in host memory, and what it copies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HostPool {
    pool: Pool,
    /// The pool whose share of the total it is sized with: a draft's is that of the pool it shadows.
    group: &'static str,
    device_pages: u64,
    least_pages: u64,
    /// Host pages for each device page, where the operator gave the bytes of the group.
    given: Option<Ratio>,
}

impl HostPool {
    /// `floor(device_pages · ratio)`, or what was given.
    fn pages(&self, ratio: Ratio) -> u64 {
        let most = MAX_COUNT / self.pool.slots_per_page();
        self.given.unwrap_or(ratio).floor_of(self.device_pages).min(most)
    }

    fn slots(&self, ratio: Ratio) -> u64 {
        self.pages(ratio).saturating_mul(self.pool.slots_per_page().get())
    }
}

impl HostTier {
    /// The host pools of `plan`, each buffer in whole granules. `given` are the bytes of single pools, drafts included.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a pool that is not on the host or not sized by itself, and for bytes that do not hold
    /// the least that it needs; [`Error::UnsupportedModel`] when no pool of the plan holds what a prefix needs.
    pub fn new(planner: &Planner, plan: &Plan, given: &[(&str, u64)], granularity: Granularity) -> Result<Self> {
        let host_pool = |pool: &Pool, slots: u64| {
            let pages = slots / pool.slots_per_page();
            let group = pool.host_group().filter(|_| pages > 0)?;
            let span = pool.span_tokens().unwrap_or(1);
            Some(HostPool {
                pool: pool.clone().with_padding(0),
                group,
                device_pages: pages,
                least_pages: span.div_ceil(pool.page_size().slots()).clamp(1, pages),
                given: None,
            })
        };
        let stages = planner.stages().iter().map(|stage| {
            stage.pools().iter().filter_map(|pool| host_pool(pool, stage.slots(pool, plan))).collect::<Vec<_>>()
        });
        let stages: Vec<_> = stages.collect();
        let allocator = Allocator::Granules(granularity);
        let mut tier = Self { stages, device_tokens: plan.tokens.max(1), allocator };
        if tier.pools().next().is_none() {
            return Err(Error::UnsupportedModel {
                message: "no pool of the plan holds what a cached prefix needs: there is nothing to keep on the host"
                    .into(),
            });
        }
        for &(name, bytes) in given {
            tier.give(name, bytes)?;
        }
        Ok(tier)
    }

    /// The pools of the host tier, each with its slots and bytes under `ratio`, on one stage.
    pub fn pools_of(&self, stage: usize, ratio: Ratio) -> impl Iterator<Item = (&Pool, u64, u128)> {
        self.stages.get(stage).into_iter().flatten().map(move |host| {
            let slots = host.slots(ratio);
            (&host.pool, slots, host.pool.bytes(slots, self.allocator))
        })
    }

    /// Bytes under `ratio` on the stage where they are most.
    #[must_use]
    pub fn bytes(&self, ratio: Ratio) -> u128 {
        self.bytes_of(ratio, |_| true)
    }

    /// The ratio as it is.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when a pool would not hold the least that a prefix needs of it, or when all of them take
    /// 2^63 bytes and more.
    pub fn check_ratio(&self, ratio: Ratio) -> Result<()> {
        if let Some(host) = self.pools().find(|host| host.pages(ratio) < host.least_pages) {
            let least = Ratio::new(host.least_pages, host.device_pages)?;
            let reason = format!("pass at least {least}: {}", host.reason());
            return Err(Error::invalid("hicache_ratio", &ratio, reason));
        }
        if self.bytes(ratio) > MAX_COUNT.into() {
            return Err(Error::invalid("hicache_ratio", &ratio, "pass less: the host pools take 2^63 bytes and more"));
        }
        Ok(())
    }

    /// The largest ratio, in steps of one token of the device, whose pools all fit `hicache_size` bytes together.
    ///
    /// # Errors
    /// [`Error::InsufficientMemory`] when the least that a prefix needs of every pool does not fit.
    pub fn ratio_within(&self, hicache_size: u64) -> Result<Ratio> {
        let least = self.least_tokens(|_| true);
        let least_ratio = Ratio::new(least, self.device_tokens)?;
        let required_bytes = self.bytes(least_ratio);
        if required_bytes > hicache_size.into() {
            let reasons: Vec<_> = self.stages.first().into_iter().flatten().map(HostPool::reason).collect();
            return Err(Error::InsufficientMemory {
                available_bytes: hicache_size.into(),
                required_bytes,
                reason: reasons.join("; "),
                alternatives: Vec::new(),
            });
        }
        if self.pools().all(|host| host.given.is_some()) {
            return Ok(Ratio::ONE);
        }
        self.most(least, |ratio| self.bytes(ratio) <= hicache_size.into())
    }

    /// Sizes a group by its own bytes.
    fn give(&mut self, name: &str, bytes: u64) -> Result<()> {
        let of_group = |host: &HostPool| host.group == name;
        if !self.pools().any(of_group) {
            let mut groups: Vec<_> = self.pools().map(|host| host.group).collect();
            groups.dedup();
            let allowed = format!("pass the bytes of {}; drafts follow the pool that they shadow", groups.join(", "));
            return Err(Error::invalid("pool_bytes", &name, allowed));
        }
        let least = self.least_tokens(of_group);
        let fits = |ratio: Ratio| self.bytes_of(ratio, of_group) <= bytes.into();
        let least_ratio = Ratio::new(least, self.device_tokens)?;
        if !fits(least_ratio) {
            let required = self.bytes_of(least_ratio, of_group);
            let reasons: Vec<_> = self.pools().filter(|host| of_group(host)).map(HostPool::reason).collect();
            let allowed = format!("{name} needs at least {required} bytes: {}", reasons.join("; "));
            return Err(Error::invalid("pool_bytes", &bytes, allowed));
        }
        if self.bytes_of(least_ratio, of_group) == 0 {
            return Err(Error::invalid("pool_bytes", &name, "its pools take no bytes: leave it out"));
        }
        let ratio = self.most(least, fits)?;
        for host in self.stages.iter_mut().flatten().filter(|host| host.group == name) {
            host.given = Some(ratio);
        }
        Ok(())
    }

    /// The largest ratio that `fits`, in steps of one token; so many as `least` fit.
    fn most(&self, least: u64, fits: impl Fn(Ratio) -> bool) -> Result<Ratio> {
        let of = |tokens: u64| Ratio::new(tokens, self.device_tokens);
        of(last_true(least, MAX_COUNT.max(least), |tokens| of(tokens).is_ok_and(&fits)))
    }

    /// The fewest tokens for which every pool that is not given holds the least that a prefix needs of it.
    fn least_tokens(&self, of: impl Fn(&HostPool) -> bool) -> u64 {
        let tokens = self.pools().filter(|host| of(host) && host.given.is_none()).map(|host| {
            // floor(device_pages · tokens / device_tokens) ≥ least_pages
            let pages = NonZeroU64::new(host.device_pages).unwrap_or(NonZeroU64::MIN);
            let product = u128::from(host.least_pages).saturating_mul(self.device_tokens.into());
            u64::try_from(product.div_ceil(u128::from(pages.get()))).unwrap_or(u64::MAX)
        });
        tokens.max().unwrap_or(1)
    }

    fn bytes_of(&self, ratio: Ratio, of: impl Fn(&HostPool) -> bool) -> u128 {
        let stages = self.stages.iter().map(|pools| {
            let bytes =
                pools.iter().filter(|host| of(host)).map(|host| host.pool.bytes(host.slots(ratio), self.allocator));
            bytes.fold(0, u128::saturating_add)
        });
        stages.max().unwrap_or(0)
    }

    fn pools(&self) -> impl Iterator<Item = &HostPool> {
        self.stages.iter().flatten()
    }
}

impl HostPool {
    /// What it must hold, as a clause.
    fn reason(&self) -> String {
        let (name, slots) = (self.pool.name(), self.least_pages.saturating_mul(self.pool.slots_per_page().get()));
        match self.pool.span_tokens() {
            Some(span) => format!("the host pool {name} needs {slots} slots for a window of {span} tokens"),
            None => format!("the host pool {name} needs {slots} slots"),
        }
    }
}
