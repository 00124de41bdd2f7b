"""The plan by trying every page: slow, and obviously right. For worlds of some thousand pages."""

from __future__ import annotations

from reference.world import Answer, Refusal, World


def plan_by_scan(world: World, budget: int) -> Answer:
    """Return the plan with the most tokens that fits `budget`, or raise `Refusal`."""
    page, cap = world.page, world.options.max_total_tokens
    least = page
    while not world.suffices(least):
        least += page
    if cap is not None and cap // page * page < least:
        raise Refusal("max_total_tokens")
    if world.cost(least) > budget:
        raise Refusal(None, world.cost(least))
    tokens = least
    while world.cost(tokens + page) <= budget and (cap is None or tokens + page <= cap):
        tokens += page
    return world.answer(tokens)
