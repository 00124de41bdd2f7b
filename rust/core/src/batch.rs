//! Many budgets at once, as columns: what `plan.rs` answers one by one.

use crate::allocator::Allocator;
use crate::curve::{Most, Step, bytes_of, most_pages_of, tokens_step};
use crate::page::PageSize;
use crate::plan::{Plan, Planner};
use crate::pool::Pool;
use crate::stage::{Stage, as_u64};

/// Rows below which another thread costs more than it saves.
const ROWS_A_THREAD: usize = 1 << 14;

/// Rows that are planned before their pools are written, one column after the other.
const BLOCK: usize = 128;

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

    fn plan_rows(&self, shown: Option<usize>, budgets: &[i64], columns: Columns<'_>) {
        let mut stages: Vec<_> = self.stages().iter().map(|stage| Shown::new(stage, self.page_size())).collect();
        let mut rest = columns;
        let mut rows = [Row::NONE; BLOCK];
        for budgets in budgets.chunks(BLOCK) {
            let (mut own, others) = rest.split_at(budgets.len());
            rest = others;
            let Some(rows) = rows.get_mut(..budgets.len()) else { continue };
            let numbers = own.tokens.iter_mut().zip(own.requests.iter_mut());
            for ((row, &budget), (tokens, requests)) in rows.iter_mut().zip(budgets).zip(numbers) {
                *row = self.row(budget);
                (*tokens, *requests) = (to_i64(row.tokens), to_i64(row.requests));
            }
            own.total_bytes.fill(0);
            match (stages.as_mut_slice(), shown) {
                ([stage], _) => stage.fill(rows, own),
                (stages, Some(shown)) => {
                    if let Some(stage) = stages.get_mut(shown) {
                        stage.fill(rows, own);
                    }
                }
                (stages, None) => {
                    for row in rows.chunks(1) {
                        let (cells, others) = own.split_at(1);
                        own = others;
                        let costliest = row.first().map_or(0, |row| self.costliest_stage(&row.plan()));
                        if let Some(stage) = stages.get_mut(costliest) {
                            stage.fill(row, cells);
                        }
                    }
                }
            }
        }
    }

    fn row(&self, budget: i64) -> Row {
        let Ok(budget) = u64::try_from(budget) else { return Row::NONE };
        let share_slots = self.share_slots(budget);
        match self.most(budget, share_slots) {
            Some(Most { pages, requests }) => {
                Row { pages, tokens: pages.saturating_mul(self.page_size().slots()), requests, share_slots }
            }
            None => Row::NONE,
        }
    }
}

/// A plan, without its budget; of no pages where the budget is too small.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Row {
    pages: u64,
    tokens: u64,
    requests: u64,
    share_slots: u64,
}

impl Row {
    const NONE: Self = Self { pages: 0, tokens: 0, requests: 0, share_slots: 0 };

    fn plan(&self) -> Plan {
        Plan { tokens: self.tokens, requests: self.requests, share_slots: self.share_slots, budget_bytes: 0 }
    }
}

/// A stage of which rows show the pools.
struct Shown<'a> {
    stage: &'a Stage,
    pools: Vec<ShownPool<'a>>,
}

struct ShownPool<'a> {
    pool: &'a Pool,
    line: Option<Line>,
    /// Slots and bytes of the last row, for pools that the next may leave as they are.
    last: (Row, u64, u64),
}

/// A pool that grows with tokens, where the allocator rounds nothing.
#[derive(Clone, Copy)]
struct Line {
    /// Its pages for each page of tokens, and up to how many pages of tokens that is so.
    step: Step,
    most_pages: u64,
    page_slots: u64,
    page_bytes: u64,
    padding_bytes: u64,
}

impl<'a> Shown<'a> {
    fn new(stage: &'a Stage, page: PageSize) -> Self {
        let line = |pool: &Pool| {
            let (page_bytes, padding) = bytes_of(pool).filter(|_| stage.allocator() == Allocator::EXACT)?;
            Some(Line {
                step: tokens_step(pool, page)?,
                most_pages: most_pages_of(pool, page),
                page_slots: pool.slots_per_page().get(),
                page_bytes,
                padding_bytes: u64::try_from(padding).ok()?,
            })
        };
        let pools = stage.pools().iter().map(|pool| ShownPool { pool, line: line(pool), last: (Row::NONE, 0, 0) });
        Self { stage, pools: pools.collect() }
    }

    /// Writes the slots of every pool, and adds their bytes.
    fn fill(&mut self, rows: &[Row], columns: Columns<'_>) {
        let most_pages = rows.iter().map(|row| row.pages).max().unwrap_or(0);
        for (pool, column) in self.pools.iter_mut().zip(columns.pools) {
            let cells = rows.iter().zip(column).zip(columns.total_bytes.iter_mut());
            match pool.line.filter(|line| most_pages <= line.most_pages) {
                Some(line) => {
                    for ((row, slots), total_bytes) in cells {
                        let pages = line.step.at(row.pages);
                        let padding_bytes = if row.pages == 0 { 0 } else { line.padding_bytes };
                        let taken = pages.wrapping_mul(line.page_bytes).wrapping_add(padding_bytes);
                        *slots = to_i64(pages.saturating_mul(line.page_slots));
                        *total_bytes = total_bytes.wrapping_add(to_i64(taken));
                    }
                }
                None => {
                    for ((row, slots), total_bytes) in cells {
                        let (own, taken) = pool.at(self.stage, row);
                        *slots = to_i64(own);
                        *total_bytes = total_bytes.wrapping_add(to_i64(taken));
                    }
                }
            }
        }
    }
}

impl ShownPool<'_> {
    /// Its slots, and the bytes that it takes.
    fn at(&mut self, stage: &Stage, row: &Row) -> (u64, u64) {
        let (last, slots, taken) = &mut self.last;
        let same = (last.requests, last.share_slots) == (row.requests, row.share_slots)
            && (last.tokens == row.tokens || !self.pool.follows_tokens());
        if row.pages == 0 {
            return (0, 0);
        }
        if !same {
            let plan = row.plan();
            *slots = stage.slots(self.pool, &plan);
            *taken = as_u64(stage.pool_bytes(self.pool, &plan));
            *last = *row;
        }
        (*slots, *taken)
    }
}

/// The number; the largest that there is for slots of pools without bytes, which alone can be more.
fn to_i64(number: u64) -> i64 {
    number.min(i64::MAX.unsigned_abs()).cast_signed()
}
