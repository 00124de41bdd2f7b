"""The plan in closed form: bounded from both sides, then bisected. Integers only; what can be done once is."""

from __future__ import annotations

from math import lcm

from reference.cells import Refusal
from reference.world import UNLIMITED, Answer, World


class ClosedForm:
    """A world made ready to be planned many times."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.page = world.step
        self.max_pages = world.max_tokens // self.page
        self.least_pages = self._least_pages()
        if self.max_pages < self.least_pages:
            raise Refusal("max_total_tokens")
        self.required_bytes = world.required(self.least_pages * self.page)
        # Each stage as (numerator, denominator) of its bytes a token, and the most that rounding slots down can save.
        self.bounds: list[tuple[int, int, int]] = []
        for stage in world.stages:
            following = [(pool, pool.rule[1] / pool.page) for pool in stage if pool.rule[0] == "tokens"]
            denominator = lcm(*(pages.denominator for _, pages in following))
            numerator = sum(int(pages * denominator) * pool.page_bytes for pool, pages in following)
            self.bounds.append((numerator, denominator, sum(pool.page_bytes for pool, _ in following)))

    def plan(self, budget: int) -> Answer:
        """Return the plan with the most tokens that fits `budget`, or raise `Refusal`."""
        if budget < self.required_bytes:
            raise Refusal(None, self.required_bytes)
        share = self.share(budget)
        return self.world.answer(self.max_total_num_tokens(budget, share), share)

    def plan_from_max_tokens(self, tokens: int) -> Answer:
        """Return the plan of `tokens`, in whole pages, whatever it takes, or raise `Refusal`."""
        pages = tokens // self.page
        if pages < self.least_pages:
            raise Refusal("max_total_num_tokens")
        return self.world.answer(pages * self.page, self.share(self.cost(pages * self.page)))

    def share(self, budget: int) -> int:
        """Return the state slots of `budget`."""
        return self.world.share(budget, self.least_pages * self.page)

    def cost(self, tokens: int) -> int:
        """Return the least budget that holds `tokens`: with a share, reached from below."""
        if not self.world.has_share:
            return self.world.cost(tokens, UNLIMITED)
        budget = self.required_bytes
        while (cost := self.world.cost(tokens, self.share(budget))) > budget:
            budget = cost
        return budget

    def max_total_num_tokens(self, budget: int, share: int) -> int:
        """Return the most tokens that fit `budget` beside `share` state slots."""
        cost, page = self.world.cost, self.page
        low, high = self.least_pages, self.max_pages
        for numerator, denominator, rounding in self.bounds:
            if numerator:
                high = min(high, (budget + rounding) * denominator // numerator // page)
        # Above what fits, rounding and the other pools take at most what is left out here; then halve what is between.
        step = 1
        guess = max(low, high - 8)
        while guess > low and cost(guess * page, share) > budget:
            high = guess - 1
            step *= 4
            guess = max(low, high - step * 8)
        low = guess
        while low < high:
            middle = (low + high + 1) // 2
            if cost(middle * page, share) <= budget:
                low = middle
            else:
                high = middle - 1
        return low * page

    def _least_pages(self) -> int:
        suffices, page = self.world.suffices, self.page
        high = UNLIMITED // page
        if not suffices(high * page):
            # Only a window pool can be too small for any number of tokens.
            follows = any(pool.name == "swa" and pool.rule[0] == "tokens" for pool in self.world.stages[0])
            raise Refusal("swa_full_tokens_ratio" if follows else "max_running_requests")
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if suffices(middle * page):
                high = middle
            else:
                low = middle
        return high
