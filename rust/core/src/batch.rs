//! Many budgets at once, as columns: what `plan.rs` answers one by one.

use crate::allocator::Allocator;
use crate::curve::{Step, bytes_of, most_pages_of, tokens_step};
use crate::page::PageSize;
use crate::plan::{Plan, Planner};
use crate::pool::Pool;
use crate::stage::{Stage, as_u64};

/// Rows below which another thread costs more than it saves.
const ROWS_A_THREAD: usize = 1 << 14;

/// Where the answers go: slices of one length, a row for each budget. All numbers of a budget that is too small are 0.
#[derive(Debug)]
pub struct Columns<'a> {
    /// Tokens that the anchor holds.
    pub tokens: &'a mut [i64],
    /// Requests served at once.
    pub requests: &'a mut [i64],
    /// Bytes that all pools take.
    pub total_bytes: &'a mut [i64],
    /// Slots of each pool, in the order of [`Stage::pools`].
    pub pools: Vec<&'a mut [i64]>,
}

impl<'a> Columns<'a> {
    /// The first `rows` of every column, and the rest; nothing of a column that is shorter.
    #[must_use]
    pub fn split_at(self, rows: usize) -> (Self, Self) {
        let split = |column: &'a mut [i64]| column.split_at_mut_checked(rows).unwrap_or_default();
        let (tokens, requests, total_bytes) = (split(self.tokens), split(self.requests), split(self.total_bytes));
        let (first, rest) = self.pools.into_iter().map(split).unzip();
        (
            Self { tokens: tokens.0, requests: requests.0, total_bytes: total_bytes.0, pools: first },
            Self { tokens: tokens.1, requests: requests.1, total_bytes: total_bytes.1, pools: rest },
        )
    }
}

impl Planner {
    /// Plans every budget of `budgets` (bytes; negative ones are too small), over as many `threads` as are worth it.
    ///
    /// The pools are those of `stage`, or of the stage that takes most.
    pub fn plan_batch(&self, stage: Option<usize>, budgets: &[i64], columns: Columns<'_>, threads: usize) {
        let threads = threads.min(budgets.len() / ROWS_A_THREAD).max(1);
        let rows = budgets.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let mut rest = columns;
            let mut chunks = budgets.chunks(rows).peekable();
            while let Some(chunk) = chunks.next() {
                let (own, others) = rest.split_at(chunk.len());
                rest = others;
                if chunks.peek().is_some() {
                    scope.spawn(move || self.plan_rows(stage, chunk, own));
                } else {
                    self.plan_rows(stage, chunk, own);
                }
            }
        });
    }

    fn plan_rows(&self, shown: Option<usize>, budgets: &[i64], mut columns: Columns<'_>) {
        let mut stages: Vec<_> = self.stages().iter().map(|stage| Shown::new(stage, self.page_size())).collect();
        let numbers = columns.tokens.iter_mut().zip(columns.requests.iter_mut()).zip(columns.total_bytes.iter_mut());
        for (row, (&budget, ((tokens, requests), total_bytes))) in budgets.iter().zip(numbers).enumerate() {
            let plan = u64::try_from(budget).ok().and_then(|budget| self.most(budget));
            let cells = columns.pools.iter_mut().filter_map(|column| column.get_mut(row));
            let stage = plan.and_then(|(pages, plan)| {
                let index = shown.unwrap_or_else(|| self.costliest_stage(&plan));
                Some((pages, plan, stages.get_mut(index)?))
            });
            let Some((pages, plan, stage)) = stage else {
                (*tokens, *requests, *total_bytes) = (0, 0, 0);
                cells.for_each(|cell| *cell = 0);
                continue;
            };
            (*tokens, *requests) = (to_i64(plan.tokens), to_i64(plan.requests));
            *total_bytes = stage.fill(pages, &plan, cells);
        }
    }
}

/// A stage of which rows show the pools.
struct Shown<'a> {
    stage: &'a Stage,
    pools: Vec<ShownPool<'a>>,
    /// Of which plan the pools that do not grow with tokens know their slots.
    known_for: Option<(u64, u64)>,
}

struct ShownPool<'a> {
    pool: &'a Pool,
    /// Its pages for each page of tokens, where it grows with them, and up to how many pages of tokens that is so.
    step: Option<(Step, u64)>,
    /// Bytes of a page and of the padding, where the allocator does not round them.
    bytes: Option<(u64, u64)>,
    slots: u64,
    taken: u64,
}

impl<'a> Shown<'a> {
    fn new(stage: &'a Stage, page: PageSize) -> Self {
        let exact = stage.allocator() == Allocator::EXACT;
        let pools = stage.pools().iter().map(|pool| {
            let bytes = bytes_of(pool).and_then(|(bytes, padding)| Some((bytes, u64::try_from(padding).ok()?)));
            let step = tokens_step(pool, page).map(|step| (step, most_pages_of(pool, page)));
            ShownPool { pool, step, bytes: bytes.filter(|_| exact), slots: 0, taken: 0 }
        });
        Self { stage, pools: pools.collect(), known_for: None }
    }

    /// Writes the slots of every pool, and returns the bytes of all.
    fn fill<'c>(&mut self, pages: u64, plan: &Plan, cells: impl Iterator<Item = &'c mut i64>) -> i64 {
        let rest = (plan.requests, plan.share_slots);
        let known = self.known_for == Some(rest);
        self.known_for = Some(rest);
        let mut total = 0_u64;
        for (pool, cell) in self.pools.iter_mut().zip(cells) {
            match (pool.step, pool.bytes) {
                (Some((step, most_pages)), Some((bytes, padding))) if pages <= most_pages => {
                    let pages = step.at(pages);
                    pool.slots = pages.saturating_mul(pool.pool.slots_per_page().get());
                    pool.taken = pages.saturating_mul(bytes).saturating_add(padding);
                }
                _ if known && !pool.pool.follows_tokens() => {}
                _ => {
                    pool.slots = self.stage.slots(pool.pool, plan);
                    pool.taken = as_u64(self.stage.pool_bytes(pool.pool, plan));
                }
            }
            *cell = to_i64(pool.slots);
            total = total.saturating_add(pool.taken);
        }
        to_i64(total)
    }
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
