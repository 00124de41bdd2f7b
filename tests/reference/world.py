"""The rules, each written once and plainly: pools, requests, and what a plan must hold. Cells are in `cells.py`.

Sources: SGLang 0.5.23 (`pool_configurator.py`, `kv_cache_configurator.py`, `deepseek_v4_memory_pool.py`, as run on a CPU)
for the pools, the request cap, the state slots and the number of requests.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from reference.cells import Formats, Layer, Refusal, State, cell_bytes
from reference.pools import Pool, Rule, align_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference.options import Options

UNLIMITED = 2**63 - 1
_NAMES = ("full", "swa", "c4", "c16", "c128", "c4_state", "c128_state", "mamba", "mamba_draft", "cross", "draft")
_ORDER = {name: place for place, name in enumerate((*_NAMES, "draft_swa", "request_table"))}


class Answer(NamedTuple):
    """A plan: the anchor's tokens, the requests, and each pool's (name, slots, padding, cell, bytes) on one stage."""

    tokens: int
    requests: int
    pools: tuple[tuple[str, int, int, int, int], ...]
    total_bytes: int


class World:
    """A model under options: the pools of each stage, and the rules that a plan of them obeys."""

    def __init__(self, layers: tuple[Layer, ...], options: Options, drafts: tuple[Layer, ...] = ()) -> None:
        self.options = options
        self.page = options.page_size
        self.asked = options.per_worker(options.max_running_requests)
        states = [state for layer in layers for state in layer]
        if options.pp_size > len(layers):
            raise Refusal("pp_size")
        if options.request_tokens is not None and options.request_tokens > options.context_length:
            raise Refusal("request_tokens")
        if not states:
            raise Refusal("model")
        self._choose_window_rule(states)
        windows = [state[-1][1] or 0 for state in states if state[-1][0] in ("window", "chunk")]
        self.window = min(max(windows), options.context_length) if windows and self.window_rule != "all" else None
        of_drafts = [state for layer in drafts for state in layer]
        named = {(self._name(state), state) for state in states}
        named |= {(self._draft_name(state), state) for state in of_drafts}
        self.names = {name for name, _ in named}
        if any(state[-1][0] == "compressed" for _, state in named):
            self.names.add("full")
        if "mamba" in self.names and options.speculative_algorithm and options.disaggregation_mode != "prefill":
            self.names.add("mamba_draft")
        if options.count_request_table:
            self.names.add("request_table")
        self.positions = max((state[-1][1] or 0 for name, state in named if name == "cross"), default=0)
        self._check(sorted({state[-1][1] or 0 for _, state in named if state[-1][0] == "compressed"}))
        ends = _stages(len(layers), options.pp_size)
        self.stages = [self._pools(layers[start:end], drafts if end == len(layers) else ()) for start, end in ends]

    def _choose_window_rule(self, states: list[State]) -> None:
        options = self.options
        self.window_rule: Literal["all", "ratio", "requests"] = "ratio"
        self.ratio, self.tails = options.ratio or Fraction(4, 5), 0
        if any(state[0] in ("compressed", "ring") for state in states):
            if options.ratio is None and options.bounds_requests:
                self.window_rule, self.tails = "requests", 0 if options.disable_radix_cache else 4
            self.ratio = options.ratio or Fraction(1, 10)
        elif options.disable_hybrid_swa_memory:
            self.window_rule = "all"
        elif options.disable_radix_cache and options.bounds_requests:
            # Where nothing keeps every token, the windows are the anchor: they follow the budget.
            anchored = any(state[-1][0] in ("full", "compressed") or state[0] == "recurrent" for state in states)
            self.window_rule = "requests" if anchored else "ratio"

    def _check(self, compressed: list[int]) -> None:
        options, has_state = self.options, "mamba" in self.names
        if any(self.page % tokens for tokens in compressed):
            raise Refusal("page_size")
        if options.dcp_size > 1 and (self.window is not None or compressed):
            raise Refusal("dcp_size")
        self.state_slots = options.per_worker(options.max_mamba_cache_size)
        if has_state and self.state_slots is not None and self.state_slots < options.held:
            raise Refusal("max_mamba_cache_size")
        # What grows with tokens; where nothing does, requests of the whole context are counted.
        self.grows = bool(self.names & {"full", "swa"})
        whole = min(max(align_up(options.context_length, self.page), 2), 2**32)
        self.step = self.page if self.grows else whole
        most = UNLIMITED if options.max_total_tokens is None else options.max_total_tokens
        if not self.grows:
            by_states = self.asked if options.disable_radix_cache else None
            if not has_state:
                by_states = self.asked or 4096
            elif self.state_slots is not None:
                by_states = self.state_slots // options.held
            most = most if by_states is None else min(most, by_states * whole)
        self.max_tokens = min(most, UNLIMITED)

    def requests(self, tokens: int, share: int) -> int:
        """Requests that are served at once: each needs two tokens, and its state slots."""
        context = self.options.context_length
        if self.asked is not None:
            most = self.asked
        elif "cross" in self.names:
            most = min(max(tokens // context, 1), 4096)
        else:
            most = min(max(tokens * 512 // context, 2048), 4096)
        for pool in self.stages[0]:
            if pool.held is not None and pool.rule[0] != "requests":
                most = min(most, pool.slots(tokens, 0, share) // pool.held)
        return min(tokens // 2, most)

    def cost(self, tokens: int, share: int) -> int:
        """Bytes of `tokens` on the stage where they take most."""
        requests = self.requests(tokens, share)
        return max(sum(pool.bytes(tokens, requests, share) for pool in stage) for stage in self.stages)

    def suffices(self, tokens: int) -> bool:
        """Whether the runtime can serve one request with `tokens`, however large the states are."""
        requests = self.requests(tokens, UNLIMITED)
        if requests < 1:
            return False
        least = {name: self._least_window() for name in ("swa", "draft_swa")}
        length = self.options.request_tokens
        if length is not None:
            least |= dict.fromkeys(("full", "draft"), align_up(-(-length // self.options.dcp_size), self.page))
        least["mamba"] = self.options.held
        return all(pool.slots(tokens, requests, UNLIMITED) >= least.get(pool.name, 0) for pool in self.stages[0])

    def _least_window(self) -> int:
        options, page, window = self.options, self.page, self.window or 0
        least = window + page + 1
        chunk = options.chunked_prefill_size
        if chunk is not None and options.disaggregation_mode != "decode":
            least = max(least, window + page + min(chunk, options.context_length))
        if options.request_tokens is not None:
            least = max(least, min(align_up(options.request_tokens, page), align_up(window, page) + page))
        return least

    @property
    def has_share(self) -> bool:
        """Whether recurrent state has a share of the budget."""
        return any(pool.rule[0] == "share" for pool in self.stages[0])

    def share_bytes(self, stage: list[Pool], slots: int) -> int:
        """Bytes that so many state slots take of their share, with those after drafted tokens."""
        pools = {pool.name: pool for pool in stage}
        drafted = pools.get("mamba_draft")
        beside = drafted.bytes(0, slots // self.options.held, 0) if drafted else 0
        return pools["mamba"].bytes_of(slots) + beside

    def share(self, budget: int, least_tokens: int) -> int:
        """State slots of `budget`: what their share holds on every stage, while the least tokens fit beside them."""
        if not self.has_share:
            return UNLIMITED
        most = UNLIMITED
        for stage in self.stages:
            pool = next(pool for pool in stage if pool.name == "mamba")
            if pool.cell and pool.rule[0] == "share":
                of_budget = budget * pool.rule[1].numerator // pool.rule[1].denominator

                def fits(slots: int, stage: list[Pool] = stage, of_budget: int = of_budget) -> bool:
                    return self.share_bytes(stage, slots) <= of_budget

                most = min(most, _last(of_budget // pool.cell, fits))
        # Those of whole requests, and of no more than can be served.
        held = self.options.held
        most = min(most // held, self.asked or 4096) * held
        if self.cost(least_tokens, most) <= budget or self.cost(least_tokens, 0) > budget:
            return most
        return _last(most, lambda slots: self.cost(least_tokens, slots) <= budget) // held * held

    def required(self, least_tokens: int) -> int:
        """The least budget that works: of the least tokens and the state of one request."""
        if not self.has_share:
            return self.cost(least_tokens, UNLIMITED)
        held = self.options.held
        needed = self.cost(least_tokens, held)
        for stage in self.stages:
            pool = next(pool for pool in stage if pool.name == "mamba")
            if pool.rule[0] == "share":
                needed = max(
                    needed, -(-self.share_bytes(stage, held) * pool.rule[1].denominator // pool.rule[1].numerator)
                )
        return needed

    def answer(self, tokens: int, share: int) -> Answer:
        """The plan of `tokens` as the stage sees it that takes most."""
        requests = self.requests(tokens, share)
        stage = max(self.stages, key=lambda pools: sum(pool.bytes(tokens, requests, share) for pool in pools))
        pools = tuple(
            (
                pool.name,
                pool.slots(tokens, requests, share),
                pool.padding if pool.cell else 0,
                pool.cell,
                pool.bytes(tokens, requests, share),
            )
            for pool in stage
        )
        return Answer(tokens, requests, pools, sum(pool[-1] for pool in pools))

    def _name(self, state: State) -> str:
        kind, number = state[-1]
        if state[0] == "ring":
            return f"c{state[1]}_state"
        names = {"request": "mamba", "encoder": "cross", "compressed": f"c{number}"}
        windowed = kind in ("window", "chunk") and self.window is not None
        return names.get(kind, "swa" if windowed else "full")

    def _draft_name(self, state: State) -> str:
        name = self._name(state)
        return {"full": "draft", "swa": "draft_swa"}.get(name, name)

    def _pools(self, layers: tuple[Layer, ...], drafts: tuple[Layer, ...]) -> list[Pool]:
        options = self.options
        formats = Formats.of(options)
        of_layers = [(self._name(state), state, 1) for layer in layers for state in layer]
        # Every rank that divides tokens holds all of a draft's; of index keys it does anyway.
        of_drafts = [
            (self._draft_name(state), state, 1 if state[0] in ("index", "recurrent") else options.dcp_size)
            for layer in drafts
            for state in layer
        ]
        cells: dict[str, list[tuple[int, bool]]] = {name: [] for name in self.names}
        for name, state, copies in of_layers + of_drafts:
            cell = copies * cell_bytes(state, formats)
            padded = state[0] == "compressed" and formats.dtype == "fp8_e4m3"
            for other in (name, "mamba_draft") if name == "mamba" else (name,):
                if other in cells:
                    cells[other].append((cell, padded))
        return [self._pool(name, cells[name]) for name in sorted(self.names, key=_ORDER.__getitem__)]

    def _pool(self, name: str, cells: list[tuple[int, bool]]) -> Pool:
        options, page = self.options, self.page
        per_page, padding, held = page, page if options.count_padding else 0, None
        rule: Rule = ("tokens", Fraction(1))
        drafted = options.speculative_num_draft_tokens if options.speculative_algorithm else 0
        ring = {"c4_state": 8, "c128_state": 128}.get(name, 0) * (2 if drafted else 1)
        if name in ("swa", "draft_swa"):
            rule = self._window_rule()
        elif name == "c4_state" and self.window is not None:
            rule, per_page, padding = self._window_rule(), ring, align_up(ring + 1, 4) if options.count_padding else 0
        elif name in ("c4_state", "c128_state"):
            page = per_page = 4 if name == "c4_state" else 128
            rule = ("requests", ring, 0, False)
            padding = align_up(ring + 1, page) + ring
        elif name.startswith("c") and name != "cross":
            tokens = int(name[1:])
            page = per_page = page // tokens
            rule = ("tokens", Fraction(1, tokens))
        elif name == "mamba":
            page, per_page, padding, held, rule = 1, 1, 1, options.held, self._state_rule()
        elif name == "mamba_draft":
            page, per_page, padding = 1, 1, drafted
            rule = ("requests", drafted, 0, False)
        elif name == "cross":
            rule = ("requests", align_up(self.positions, page), 0, False)
        elif name == "request_table":
            page = per_page = padding = 1
            rule = ("requests", 1, 0, False)
            cells = [((options.context_length + 4 + drafted) * 4, False)]
        sizes = [align_up(cell * per_page, 576) if padded else cell * per_page for cell, padded in cells]
        pads = [
            -(-padding // per_page) * size if padded else padding * cell
            for (cell, padded), size in zip(cells, sizes, strict=True)
        ]
        cell = sum(cell for cell, _ in cells)
        return Pool(name, page, rule, per_page, padding, cell, sum(sizes), sum(pads), held)

    def _state_rule(self) -> Rule:
        options = self.options
        if not self.grows:
            return "tokens", Fraction(options.held, self.step)
        if self.state_slots is not None:
            return "fixed", self.state_slots
        if options.disable_radix_cache and self.asked is not None:
            return "requests", 1, 0, False
        ratio = options.mamba_full_memory_ratio
        return "share", ratio / (1 + ratio)

    def _window_rule(self) -> Rule:
        options, page, window = self.options, self.page, self.window or 0
        if "full" not in self.names:
            return "tokens", Fraction(1)
        if self.window_rule != "requests":
            return "tokens", self.ratio
        batches = 1 if options.disable_overlap_schedule else 2
        lag, decode = options.eviction_interval, page
        if options.speculative_algorithm:
            steps, topk = options.speculative_num_steps, options.speculative_eagle_topk
            branches = steps * topk if page == 1 or topk == 1 else align_up(steps + page, page) * topk
            lag *= options.speculative_num_draft_tokens
            decode = batches * max(branches, options.speculative_num_draft_tokens)
        each = window + lag + page + decode + self.tails * (window + page)
        base = 0 if options.disaggregation_mode == "decode" else batches * (options.chunked_prefill_size or 0) + page
        return "requests", each, base, True


def _last(high: int, holds: Callable[[int], bool]) -> int:
    """The last number up to `high` for which `holds`, or 0."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _stages(layers: int, count: int) -> list[tuple[int, int]]:
    """The layers of each stage: the last `layers mod count` own one more."""
    sizes = [layers // count + (stage >= count - layers % count) for stage in range(count)]
    ends = [sum(sizes[: stage + 1]) for stage in range(count)]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
