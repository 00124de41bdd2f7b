"""A pool of one stage: the rule by which its slots grow, and the bytes that they take."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, NamedTuple

# ("tokens", ratio), ("requests", slots of each, slots of all, whether the anchor limits them), ("share", of the budget),
# ("fixed", slots).
Rule = (
    tuple[Literal["tokens"], Fraction]
    | tuple[Literal["requests"], int, int, bool]
    | tuple[Literal["share"], Fraction]
    | tuple[Literal["fixed"], int]
)


class Pool(NamedTuple):
    """A pool of one stage."""

    name: str
    page: int  # slots in which the rule counts
    rule: Rule
    per_page: int  # slots for each page of the rule
    padding: int
    cell: int
    page_bytes: int
    padding_bytes: int
    held: int | None  # slots of each request that is served, where they limit the requests

    def slots(self, tokens: int, requests: int, share: int) -> int:
        """Slots when the anchor holds `tokens`, `requests` are served, and a share of the budget holds `share`."""
        match self.rule:
            case ("tokens", ratio):
                counted = tokens * ratio.numerator // ratio.denominator // self.page * self.page
            case ("requests", each, base, at_most_anchor):
                counted = align_up(each * requests + base, self.page)
                counted = min(counted, tokens) if at_most_anchor else counted
            case ("share", _):
                counted = share
            case ("fixed", slots):
                counted = slots
        return counted // self.page * self.per_page

    def bytes(self, tokens: int, requests: int, share: int) -> int:
        """Bytes, padding included; a pool without layers takes none."""
        return self.bytes_of(self.slots(tokens, requests, share))

    def bytes_of(self, slots: int) -> int:
        """Bytes of so many slots and the padding."""
        return slots // self.per_page * self.page_bytes + self.padding_bytes if self.cell else 0


def align_up(number: int, page: int) -> int:
    """Return the whole pages that hold a number of slots."""
    return -(-number // page) * page
