"""A window hybrid planned for whole arrays in NumPy, exactly: bounds from both sides, narrowed once, then bisected.

As a careful NumPy programmer would write it who knows the rules; the benchmarks compare with it.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]


class NumpyHybrid:
    """A full pool, a window pool of `ratio` its slots, and the request table; all bytes are of one rank."""

    def __init__(
        self, *, full: int, window: int, ratio: Fraction, page: int, row: int, context: int, window_tokens: int
    ) -> None:
        self.full, self.window, self.ratio = full * page, window * page, ratio
        self.page, self.row, self.context = page, row, context
        # A page of each pool that is never handed out, and a row.
        self.padding = self.full + self.window + row
        # Bytes of a page of tokens, by its denominator.
        self.slope = self.full * ratio.denominator + self.window * ratio.numerator
        # The window pool must exceed a window and a page.
        windows = -(-(window_tokens + page + 1) // page)
        self.least_pages = -(-windows * ratio.denominator // ratio.numerator)
        self.least_bytes = int(self.cost(np.array([self.least_pages]))[0])

    def requests(self, pages: Array) -> Array:
        tokens = pages * self.page
        return np.minimum(np.minimum(np.maximum(tokens * 512 // self.context, 2048), 4096), tokens // 2)

    def windows(self, pages: Array) -> Array:
        """Pages of the window pool."""
        return pages * self.ratio.numerator // self.ratio.denominator

    def cost(self, pages: Array) -> Array:
        table = self.requests(pages) * self.row
        return pages * self.full + self.windows(pages) * self.window + table + self.padding

    def tokens_worth(self, room: Array) -> Array:
        """Pages that `room` pays for, rounded down, without a product that passes 64 bits."""
        whole, rest = np.divmod(room, self.slope)
        return whole * self.ratio.denominator + rest * self.ratio.denominator // self.slope

    def plan(self, budgets: Array) -> dict[str, Array]:
        """Return the columns; all numbers of a budget that is too small are 0."""
        enough = budgets >= self.least_bytes
        rest = np.where(enough, budgets, self.least_bytes) - self.padding
        low, high = np.full_like(budgets, self.least_pages), self.tokens_worth(rest) + 1
        for _ in range(2):
            low = np.maximum(low, self.tokens_worth(np.maximum(rest - self.requests(high) * self.row, 0)))
            high = np.minimum(high, self.tokens_worth(rest - self.requests(low) * self.row + self.window))
        while (low < high).any():
            middle = low + (high - low + 1) // 2
            fits = self.cost(middle) <= budgets
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        pages = np.where(enough, low, 0)
        requests = self.requests(pages)
        return {
            "max_total_num_tokens": pages * self.page,
            "max_running_requests": requests,
            "total_bytes": np.where(enough, self.cost(pages), 0),
            "full": pages * self.page,
            "swa": self.windows(pages) * self.page,
            "request_table": requests,
        }
