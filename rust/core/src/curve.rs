//! What a stage takes as a closed form: pieces on which its bytes are a straight line of the pages of tokens, with steps.
//! The most tokens of a budget then follow from a product and a few evaluations. Where a stage has no such form, because an
//! allocator rounds or a pool shares the budget, `stage.rs` searches.

use std::num::NonZeroU64;

use crate::allocator::Allocator;
use crate::page::PageSize;
use crate::plan::{Plan, Planner};
use crate::pool::{Growth, Pool, last_true_from};
use crate::requests::Served;
use crate::stage::{Stage, as_u64};

/// `floor(pages · factor / divisor)`, by a multiplication with the divisor's inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    factor: u64,
    divisor: NonZeroU64,
    /// `floor((2^64 - 1) / divisor)`.
    inverse: u64,
}

impl Step {
    /// A step that is `numerator / denominator` a page, in lowest terms.
    pub(crate) fn new(numerator: NonZeroU64, denominator: NonZeroU64) -> Self {
        let common = greatest_common_divisor(numerator, denominator);
        let divisor = NonZeroU64::new(denominator.get() / common).unwrap_or(NonZeroU64::MIN);
        Self { factor: numerator.get() / common, divisor, inverse: u64::MAX / divisor }
    }

    /// The number after so many `pages`, of which no more than `most_pages` may be passed.
    pub(crate) fn at(self, pages: u64) -> u64 {
        self.divide(pages.wrapping_mul(self.factor)).0
    }

    /// `number / divisor`, and what is left.
    fn divide(self, number: u64) -> (u64, u64) {
        // `number · inverse / 2^64` is below the fraction by less than one: its floor is the quotient, or one less.
        let quotient = high_half(number, self.inverse);
        let rest = number.wrapping_sub(quotient.wrapping_mul(self.divisor.get()));
        if rest >= self.divisor.get() {
            (quotient.wrapping_add(1), rest.wrapping_sub(self.divisor.get()))
        } else {
            (quotient, rest)
        }
    }

    /// A `number`-th of it, rounded down.
    pub(crate) fn part(self, number: NonZeroU64) -> Option<Self> {
        NonZeroU64::new(self.factor).and_then(|factor| Some(Self::new(factor, self.divisor.checked_mul(number)?)))
    }

    /// The most pages whose product with the factor is below 2^64.
    pub(crate) fn most_pages(self) -> u64 {
        u64::MAX.checked_div(self.factor).unwrap_or(u64::MAX)
    }

    /// Whether it is a whole number of each page.
    pub(crate) fn whole(self) -> Option<u64> {
        (self.divisor == NonZeroU64::MIN).then_some(self.factor)
    }

    /// Whether it never passes `other`.
    pub(crate) fn at_most(self, other: Self) -> bool {
        let product = |a: u64, b: NonZeroU64| u128::from(a).saturating_mul(b.get().into());
        product(self.factor, other.divisor) <= product(other.factor, self.divisor)
    }
}

/// The longest cycle that is kept, pages.
const LONGEST_CYCLE: usize = 8;

/// The pages from one number to another, on which the bytes follow one rule. On a line all of them are below 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Piece {
    first: u64,
    last: u64,
    /// Bytes at `first`.
    least_bytes: u64,
    line: Option<Line>,
}

/// `fixed_bytes + page_bytes · pages + request_bytes · requests`, and the curve's own steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Line {
    fixed_bytes: u64,
    page_bytes: u64,
    request_bytes: u64,
    served: Served,
    /// `2^64 / (bytes a page)`, rounded down; where that is below a byte, 2^64 - 1.
    inverse: u64,
    cycle: Option<Cycle>,
}

/// Pages after which the steps of a line come together again: `bytes(m · pages + r) = m · bytes + parts[r]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cycle {
    pages: u64,
    /// How often the bytes of so many pages are in a number of bytes, and what is left.
    count: Step,
    /// Bytes of the first pages of a cycle, none of them included; 2^64 - 1 beyond its end.
    parts: [u64; LONGEST_CYCLE],
}

impl Cycle {
    /// The most pages that `room` holds, and their bytes. There is no branch that depends on the room: a wrong guess of the
    /// processor takes longer than all of this.
    #[inline]
    fn most(&self, room: u64) -> (u64, u64) {
        let (cycles, rest) = self.count.divide(room);
        let begun = self.parts.iter().skip(1).map(|&bytes| usize::from(bytes <= rest)).fold(0, usize::wrapping_add);
        let unused = rest.wrapping_sub(self.parts.get(begun).copied().unwrap_or(0));
        let begun = u64::try_from(begun).unwrap_or(0);
        (cycles.wrapping_mul(self.pages).wrapping_add(begun), room.wrapping_sub(unused))
    }
}

/// All that a stage takes, for every number of pages that can be planned and takes less than 2^64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Curve {
    pieces: Vec<Piece>,
    /// Pools that do not grow by whole pages of theirs for each page of tokens: bytes of one, and how many.
    steps: Vec<(u64, Step)>,
}

/// The most that a budget holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Most {
    /// Pages of tokens.
    pub(crate) pages: u64,
    pub(crate) requests: u64,
    /// What they take, where a line says it.
    pub(crate) bytes: Option<u64>,
}

impl Curve {
    /// The curve of `stage` from `first` to `last` pages of tokens; `None` for a stage that has none.
    pub(crate) fn of(stage: &Stage, planner: &Planner, (first, last): (u64, u64)) -> Option<Self> {
        let page = planner.page_size();
        if stage.allocator() != Allocator::EXACT {
            return None;
        }
        let (mut steps, mut page_bytes, mut fixed_bytes, mut most_pages) = (Vec::new(), 0_u64, 0_u128, last);
        for pool in stage.pools() {
            let (bytes, padding) = bytes_of(pool)?;
            fixed_bytes = fixed_bytes.checked_add(padding)?;
            match pool.growth() {
                Growth::PerToken(_) => {
                    let step = tokens_step(pool, page)?;
                    most_pages = most_pages.min(most_pages_of(pool, page));
                    match step.whole() {
                        Some(pages) => page_bytes = page_bytes.checked_add(pages.checked_mul(bytes)?)?,
                        None if bytes > 0 => steps.push((bytes, step)),
                        None => {}
                    }
                }
                Growth::Share(_) => return None,
                _ => {}
            }
        }
        let mut curve = Self { pieces: Vec::new(), steps };
        let mut starts = planner.request_breaks();
        starts.push(most_pages.saturating_add(1));
        starts.retain(|&start| first < start && start <= last);
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().map(|start| start.saturating_sub(1)).chain([last]);
        let mut begin = first;
        for end in ends {
            while begin <= end {
                let tokens = begin.saturating_mul(page.slots());
                let plan = Plan { tokens, requests: planner.requests_at(tokens, 0), share_slots: 0, budget_bytes: 0 };
                let Ok(least_bytes) = u64::try_from(stage.bytes(&plan)) else { return Some(curve) };
                let (line, until) = if end <= most_pages {
                    curve.line(stage, planner, (begin, end), (fixed_bytes, page_bytes))
                } else {
                    (None, end)
                };
                curve.push(Piece { first: begin, last: until, least_bytes, line });
                begin = until.saturating_add(1);
            }
        }
        Some(curve)
    }

    /// Adds a piece up to the last page at which its bytes are below 2^64: no budget holds more.
    fn push(&mut self, piece: Piece) {
        let below = |line: &Line| {
            let room = u64::MAX.saturating_sub(line.fixed_bytes);
            let guess = high_half(room, line.inverse).clamp(piece.first, piece.last);
            last_true_from(guess, piece.last, |pages| self.exact_bytes(line, pages).is_some())
        };
        let last = piece.line.as_ref().map_or(piece.last, below);
        self.pieces.push(Piece { last, ..piece });
    }

    fn exact_bytes(&self, line: &Line, pages: u64) -> Option<u64> {
        let requests = match line.served {
            Served::Step(step) => line.request_bytes.checked_mul(step.at(pages))?,
            Served::Requests(_) => 0,
        };
        let bytes = line.fixed_bytes.checked_add(line.page_bytes.checked_mul(pages)?)?.checked_add(requests)?;
        self.steps.iter().try_fold(bytes, |bytes, &(each, step)| bytes.checked_add(each.checked_mul(step.at(pages))?))
    }

    /// The line from `first` on, and the last page up to `last` for which it holds.
    fn line(
        &self,
        stage: &Stage,
        planner: &Planner,
        (first, last): (u64, u64),
        (mut fixed_bytes, mut page_bytes): (u128, u64),
    ) -> (Option<Line>, u64) {
        let page = planner.page_size();
        let Some(served) = planner.served_between(first, last) else { return (None, last) };
        let (mut request_bytes, mut until) = (0_u64, last);
        for pool in stage.pools() {
            let Some((bytes, _)) = bytes_of(pool) else { return (None, last) };
            let taken = match (pool.growth(), served) {
                (Growth::PerToken(_), _) => Some(Taken::Fixed(0)),
                (Growth::PerRequest { slots, base: 0, at_most_anchor: false }, Served::Step(_))
                    if pool.page_size() == PageSize::ONE && pool.slots_per_page() == NonZeroU64::MIN =>
                {
                    slots.checked_mul(bytes).map(Taken::PerRequest)
                }
                (Growth::PerRequest { at_most_anchor: true, .. }, Served::Requests(requests)) => {
                    // As many as the anchor has, until the requests hold no more than that.
                    let held = pool.slots(u64::MAX, requests, 0);
                    let tokens = (held / pool.slots_per_page()).saturating_mul(pool.page_size().slots());
                    let full = tokens.div_ceil(page.slots());
                    if full <= first {
                        pages_bytes(pool, held, bytes).map(Taken::Fixed)
                    } else if pool.page_size() == page {
                        until = until.min(full.saturating_sub(1));
                        Some(Taken::PerPage(bytes))
                    } else {
                        None
                    }
                }
                (Growth::PerRequest { .. } | Growth::Fixed(_), Served::Requests(requests)) => {
                    pages_bytes(pool, pool.slots(0, requests, 0), bytes).map(Taken::Fixed)
                }
                (Growth::Fixed(_), Served::Step(_)) => pages_bytes(pool, pool.slots(0, 0, 0), bytes).map(Taken::Fixed),
                _ => None,
            };
            let added = match taken {
                Some(Taken::Fixed(bytes)) => fixed_bytes.checked_add(bytes).map(|sum| fixed_bytes = sum),
                Some(Taken::PerPage(bytes)) => page_bytes.checked_add(bytes).map(|sum| page_bytes = sum),
                Some(Taken::PerRequest(bytes)) => request_bytes.checked_add(bytes).map(|sum| request_bytes = sum),
                None => None,
            };
            if added.is_none() {
                return (None, last);
            }
        }
        let inverse = self.inverse(page_bytes, request_bytes, served);
        let Ok(fixed_bytes) = u64::try_from(fixed_bytes) else { return (None, last) };
        let mut line = Line { fixed_bytes, page_bytes, request_bytes, served, inverse, cycle: None };
        line.cycle = self.cycle(&line);
        (Some(line), until)
    }

    /// The cycle of a line, where it is short.
    fn cycle(&self, line: &Line) -> Option<Cycle> {
        let mut all = self.steps.iter().map(|&(_, step)| step).chain(match line.served {
            Served::Step(step) if line.request_bytes > 0 => Some(step),
            _ => None,
        });
        let most = NonZeroU64::new(u64::try_from(LONGEST_CYCLE).ok()?)?;
        let pages = all.try_fold(NonZeroU64::MIN, |pages, step| {
            let common = greatest_common_divisor(pages, step.divisor);
            pages.checked_mul(NonZeroU64::new(step.divisor.get() / common)?).filter(|&pages| pages <= most)
        })?;
        let of_pages = |pages: u64| self.exact_bytes(line, pages)?.checked_sub(line.fixed_bytes);
        let bytes = of_pages(pages.get())?;
        let mut parts = [u64::MAX; LONGEST_CYCLE];
        for (part, page) in parts.iter_mut().zip(0..pages.get()) {
            *part = of_pages(page)?;
        }
        Some(Cycle { pages: pages.get(), count: Step::new(NonZeroU64::MIN, NonZeroU64::new(bytes)?), parts })
    }

    /// `2^64` by the bytes of a page; rounded down, as the bytes are in 2^-32 and rounded up.
    fn inverse(&self, page_bytes: u64, request_bytes: u64, served: Served) -> u64 {
        let part = |bytes: u64, step: Step| {
            let product = u128::from(bytes).saturating_mul(step.factor.into()).saturating_mul(1 << 32);
            product.div_ceil(step.divisor.get().into())
        };
        let steps = self.steps.iter().map(|&(bytes, step)| part(bytes, step)).fold(0, u128::saturating_add);
        let requests = match served {
            Served::Step(step) => part(request_bytes, step),
            Served::Requests(_) => 0,
        };
        let bytes = (u128::from(page_bytes) << 32).saturating_add(steps).saturating_add(requests);
        as_u64((1_u128 << 96).checked_div(bytes).unwrap_or(u128::MAX))
    }

    /// The most that `budget` holds, and none where that is less than the least; `search` finds it among the pages up to a
    /// last one, where no line says it.
    #[inline]
    pub(crate) fn most(&self, budget: u64, search: impl Fn(u64) -> Most) -> Option<Most> {
        let piece = self.pieces.iter().rfind(|piece| piece.least_bytes <= budget)?;
        let Some(line) = &piece.line else { return Some(search(piece.last)) };
        let room = budget.wrapping_sub(line.fixed_bytes);
        let (mut pages, mut bytes) = match &line.cycle {
            Some(cycle) => {
                let (pages, bytes) = cycle.most(room);
                (pages, line.fixed_bytes.wrapping_add(bytes))
            }
            None => (u64::MAX, 0),
        };
        if pages > piece.last {
            // Beyond the piece, or without a cycle. The line through the steps is nowhere below them: as many pages as it
            // says fit, and few more do.
            let guess = high_half(room, line.inverse).clamp(piece.first, piece.last);
            pages = last_true_from(guess, piece.last, |pages| self.bytes(line, pages) <= budget);
            bytes = self.bytes(line, pages);
        }
        Some(Most { pages, requests: line.served.at(pages), bytes: Some(bytes) })
    }

    /// What the first of `budgets` hold, as many as are in one piece on which nothing is searched; none if the first is not.
    pub(crate) fn most_of_run(&self, budgets: &[i64], mut write: impl FnMut(usize, Most)) -> usize {
        let number = |budget: i64| budget.max(0).cast_unsigned();
        let Some(&first) = budgets.first() else { return 0 };
        let Some(index) = self.pieces.iter().rposition(|piece| piece.least_bytes <= number(first)) else { return 0 };
        let Some(piece) = self.pieces.get(index) else { return 0 };
        let next = self.pieces.get(index.wrapping_add(1)).map_or(u64::MAX, |next| next.least_bytes);
        let (Some(line), Some((cycle, Served::Requests(requests)))) =
            (piece.line, piece.line.and_then(|line| Some((line.cycle?, line.served))))
        else {
            return 0;
        };
        for (row, &budget) in budgets.iter().enumerate() {
            let budget = number(budget);
            let (pages, bytes) = cycle.most(budget.wrapping_sub(line.fixed_bytes));
            if budget < piece.least_bytes || budget >= next || pages > piece.last {
                return row;
            }
            write(row, Most { pages, requests, bytes: Some(line.fixed_bytes.wrapping_add(bytes)) });
        }
        budgets.len()
    }

    fn bytes(&self, line: &Line, pages: u64) -> u64 {
        let mut bytes = line.fixed_bytes.wrapping_add(line.page_bytes.wrapping_mul(pages));
        if let Served::Step(step) = line.served {
            bytes = bytes.wrapping_add(line.request_bytes.wrapping_mul(step.at(pages)));
        }
        for (each, step) in &self.steps {
            bytes = bytes.wrapping_add(each.wrapping_mul(step.at(pages)));
        }
        bytes
    }
}

/// What a pool takes besides its padding.
enum Taken {
    Fixed(u128),
    PerPage(u64),
    PerRequest(u64),
}

/// Bytes of a page of the pool and of its padding, none where it keeps nothing.
fn bytes_of(pool: &Pool) -> Option<(u64, u128)> {
    if pool.cell_bytes() == 0 {
        return Some((0, 0));
    }
    let (page_bytes, padding_bytes) = pool.page_and_padding_bytes();
    Some((u64::try_from(page_bytes).ok()?, padding_bytes))
}

fn pages_bytes(pool: &Pool, slots: u64, bytes: u64) -> Option<u128> {
    u128::from(slots / pool.slots_per_page()).checked_mul(bytes.into())
}

/// Pages of the pool for each page of tokens.
pub(crate) fn tokens_step(pool: &Pool, page: PageSize) -> Option<Step> {
    let Growth::PerToken(ratio) = pool.growth() else { return None };
    let numerator = page.non_zero().checked_mul(NonZeroU64::new(ratio.numerator())?)?;
    Some(Step::new(numerator, ratio.denominator().checked_mul(pool.page_size().non_zero())?))
}

/// The most pages of tokens of which the pool's slots are counted in 64 bits.
pub(crate) fn most_pages_of(pool: &Pool, page: PageSize) -> u64 {
    match pool.growth() {
        Growth::PerToken(ratio) => u64::MAX.checked_div(ratio.numerator()).unwrap_or(0) / page.non_zero(),
        _ => u64::MAX,
    }
}

/// `floor(a · b / 2^64)`.
fn high_half(a: u64, b: u64) -> u64 {
    as_u64(u128::from(a).wrapping_mul(b.into()) >> 64)
}

fn greatest_common_divisor(mut a: NonZeroU64, mut b: NonZeroU64) -> NonZeroU64 {
    while let Some(rest) = NonZeroU64::new(a.get() % b) {
        (a, b) = (b, rest);
    }
    b
}
