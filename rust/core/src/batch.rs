//! Many budgets at once, as columns: what `plan.rs` answers one by one.

use crate::curve::{Most, Step, most_pages_of, tokens_step};
use crate::page::{MAX_COUNT, PageSize};
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
        let shown = if stages.len() == 1 { Some(0) } else { shown };
        let mut rest = columns;
        let mut rows = [Row::NONE; BLOCK];
        for budgets in budgets.chunks(BLOCK) {
            let (mut own, others) = rest.split_at(budgets.len());
            rest = others;
            let Some(rows) = rows.get_mut(..budgets.len()) else { continue };
            self.fill_rows(budgets, rows);
            for ((row, tokens), requests) in rows.iter().zip(own.tokens.iter_mut()).zip(own.requests.iter_mut()) {
                *tokens = to_i64(row.tokens(self.page_size()));
                *requests = row.requests.cast_signed();
            }
            if let Some(shown) = shown {
                if let Some(stage) = stages.get_mut(shown) {
                    stage.fill(rows, own);
                }
                continue;
            }
            for row in rows.chunks(1) {
                let (cells, others) = own.split_at(1);
                own = others;
                let costliest = row.first().map_or(0, |row| self.costliest_stage(&row.plan(self.page_size())));
                if let Some(stage) = stages.get_mut(costliest) {
                    stage.fill(row, cells);
                }
            }
        }
    }

    fn fill_rows(&self, budgets: &[i64], rows: &mut [Row]) {
        let (mut budgets, mut rows) = (budgets, rows);
        while let Some(&budget) = budgets.first() {
            let mut done = 0;
            if let Some(curve) = self.only_curve() {
                done = curve.most_of_run(budgets, |row, most| {
                    if let Some(row) = rows.get_mut(row) {
                        *row = Row::of(most, MAX_COUNT);
                    }
                });
            }
            if let (0, Some(row)) = (done, rows.first_mut()) {
                *row = self.row(budget);
            }
            budgets = budgets.get(done.max(1)..).unwrap_or_default();
            rows = rows.get_mut(done.max(1)..).unwrap_or_default();
        }
    }

    fn row(&self, budget: i64) -> Row {
        let budget = budget.max(0).cast_unsigned();
        let share_slots = self.share_slots(budget);
        self.most(budget, share_slots).map_or(Row::NONE, |most| Row::of(most, share_slots))
    }
}

/// A plan, without its budget; of no pages where the budget is too small.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Row {
    pages: u64,
    requests: u64,
    share_slots: u64,
    /// What the only stage takes, if that is known.
    bytes: u64,
}

impl Row {
    /// More than any plan takes.
    const UNKNOWN: u64 = u64::MAX;
    const NONE: Self = Self { pages: 0, requests: 0, share_slots: 0, bytes: 0 };

    fn of(most: Most, share_slots: u64) -> Self {
        let bytes = most.bytes.unwrap_or(Self::UNKNOWN);
        Self { pages: most.pages, requests: most.requests, share_slots, bytes }
    }

    fn tokens(&self, page: PageSize) -> u64 {
        self.pages.wrapping_mul(page.slots())
    }

    fn plan(&self, page: PageSize) -> Plan {
        let tokens = self.tokens(page);
        Plan { tokens, requests: self.requests, share_slots: self.share_slots, budget_bytes: 0 }
    }
}

/// A stage of which rows show the pools.
struct Shown<'a> {
    stage: &'a Stage,
    page: PageSize,
    pools: Vec<ShownPool<'a>>,
}

struct ShownPool<'a> {
    pool: &'a Pool,
    /// Its pages for each page of tokens, where it grows with these, and up to how many of them that is so.
    step: Option<(Step, u64)>,
    /// The last row whose slots were worked out, and these; other rows may have as many.
    last: (Row, u64),
}

impl<'a> Shown<'a> {
    fn new(stage: &'a Stage, page: PageSize) -> Self {
        let pools = stage.pools().iter().map(|pool| {
            let step = tokens_step(pool, page).map(|step| (step, most_pages_of(pool, page)));
            ShownPool { pool, step, last: (Row::NONE, 0) }
        });
        Self { stage, page, pools: pools.collect() }
    }

    /// Writes the slots of every pool, and the bytes of all.
    fn fill(&mut self, rows: &[Row], columns: Columns<'_>) {
        let most_pages = rows.iter().map(|row| row.pages).max().unwrap_or(0);
        for (pool, column) in self.pools.iter_mut().zip(columns.pools) {
            let cells = rows.iter().zip(column);
            let page_slots = pool.pool.slots_per_page().get();
            match pool.step.filter(|&(_, most)| most_pages <= most) {
                Some((step, _)) => match step.whole().and_then(|pages| pages.checked_mul(page_slots)) {
                    Some(slots) => cells.for_each(|(row, cell)| *cell = to_i64(row.pages.saturating_mul(slots))),
                    None => cells.for_each(|(row, cell)| *cell = to_i64(step.at(row.pages).saturating_mul(page_slots))),
                },
                None => cells.for_each(|(row, cell)| *cell = to_i64(pool.slots(self.stage, row, self.page))),
            }
        }
        for (row, total_bytes) in rows.iter().zip(columns.total_bytes) {
            let bytes = match row.bytes {
                Row::UNKNOWN => as_u64(self.stage.bytes(&row.plan(self.page))),
                bytes => bytes,
            };
            *total_bytes = bytes.cast_signed();
        }
    }
}

impl ShownPool<'_> {
    fn slots(&mut self, stage: &Stage, row: &Row, page: PageSize) -> u64 {
        let (last, slots) = &mut self.last;
        let same = (last.requests, last.share_slots) == (row.requests, row.share_slots)
            && (last.pages == row.pages || !self.pool.follows_tokens());
        if row.pages == 0 {
            return 0;
        }
        if !same {
            *slots = stage.slots(self.pool, &row.plan(page));
            *last = *row;
        }
        *slots
    }
}

/// The number; the largest that there is for slots of pools without bytes, which alone can be more.
fn to_i64(number: u64) -> i64 {
    number.min(i64::MAX.unsigned_abs()).cast_signed()
}
