"""The plan by trying every step of tokens: slow, and obviously right. For worlds of some thousand steps."""

from __future__ import annotations

from reference.cells import Refusal
from reference.world import Answer, World


def plan_by_scan(world: World, budget: int) -> Answer:
    """Return the plan with the most tokens that fits `budget`, or raise `Refusal`."""
    step, most = world.step, world.max_tokens
    least = step
    while not world.suffices(least):
        least += step
    if most // step * step < least:
        raise Refusal("max_total_tokens")
    if world.required(least) > budget:
        raise Refusal(None, world.required(least))
    share = world.share(budget, least)
    tokens = least
    while world.cost(tokens + step, share) <= budget and tokens + step <= most:
        tokens += step
    return world.answer(tokens, share)
