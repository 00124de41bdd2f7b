"""How the sizing of drafts, states and stages went wrong in public: each report's inputs, its wrong answer, and ours.

Cells and windows are in `test_faults.py`.
"""

from __future__ import annotations

import dataclasses

import pytest

from poolplan import (
    Attention,
    InsufficientMemoryError,
    LatentAttention,
    Layer,
    ModelSpec,
    RecurrentState,
    RuntimeSpec,
    Span,
    StateTensor,
    create_memory_pool_configurator,
)
from poolplan.cli.report import plan_report


def model_with(layers: tuple[Layer, ...]) -> ModelSpec:
    return ModelSpec(
        name="layers",
        model_type="layers",
        layers=layers,
        context_length=8192,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
    )


def test_every_draft_layer_is_in_the_same_budget() -> None:
    """sgl-project/sglang#31588: 8 draft layers, about one of them counted, and no memory at the last."""
    draft = ModelSpec.from_pretrained("meta-llama/Llama-3.1-8B")
    drafts = dataclasses.replace(draft, layers=draft.layers[:8])
    model = ModelSpec.from_pretrained("meta-llama/Llama-3.1-8B").with_draft(drafts)
    config = create_memory_pool_configurator(model, RuntimeSpec(page_size=64)).calculate_pool_sizes(20 << 30)
    cells = {pool.name: (pool.cell_bytes, pool.slots) for pool in config.pools}
    assert cells["draft"] == (8 * 4096, config.max_total_num_tokens)
    assert config.total_bytes <= 20 << 30


def test_mtp_layers_of_windows_cost_windows() -> None:
    """sgl-project/sglang#34499: three MTP layers of DeepSeek-V4-Flash at 0.8 are 1,401.6 bytes a token, not 1,056.8."""
    v4 = ModelSpec.from_pretrained("deepseek-ai/DeepSeek-V4-Flash")
    model = dataclasses.replace(v4, mtp_layers=v4.mtp_layers[:1] * 3)
    runtime = RuntimeSpec(page_size=256, swa_full_tokens_ratio=0.8, speculative_algorithm="NEXTN")
    draft = create_memory_pool_configurator(model, runtime).calculate_pool_sizes(60 << 30).pool("draft_swa")
    assert draft is not None
    assert draft.cell_bytes * 4 == 1_401.6 * 5


def test_layers_that_keep_nothing_are_not_charged() -> None:
    """ai-dynamo/aisimulate#176: Nemotron-3-Super has 8 layers with K and V and 40 with a state; 88 were charged."""
    model = ModelSpec.from_pretrained("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")
    kept = [len(layer.states) for layer in model.layers]
    assert (len(kept), kept.count(0)) == (88, 40)
    full, states = create_memory_pool_configurator(model, RuntimeSpec()).calculate_pool_sizes(60 << 30).pools[:2]
    assert (len(full.layers), len(states.layers)) == (8, 40)


@pytest.mark.parametrize(
    ("name", "tokens", "gib"),
    [
        ("google/gemma-3-27b-it", 131_072, "10.41"),
        ("deepseek-ai/DeepSeek-V3", 163_840, "10.72"),
        ("moonshotai/Kimi-K2.5", 262_144, "17.16"),
    ],
)
def test_a_long_request_takes_what_its_layers_keep(name: str, tokens: int, gib: str) -> None:
    """unslothai/unsloth#4757: one formula for all models said 81.38, 2.08 and 6.67."""
    runtime = RuntimeSpec(kv_cache_dtype="bfloat16", count_request_table=False)
    held = create_memory_pool_configurator(ModelSpec.from_pretrained(name), runtime).request_bytes(tokens)
    assert f"{sum(held.values()) / 2**30:.2f}" == gib


def test_a_block_has_the_bytes_of_the_layers_that_keep_tokens() -> None:
    """jundot/omlx#2725: 64 tokens of Qwen3.5-27B are 4.00 MiB in 16 of 64 layers, and 16.00 were said."""
    configurator = create_memory_pool_configurator(
        ModelSpec.from_pretrained("Qwen/Qwen3.5-27B"), RuntimeSpec(page_size=64)
    )
    assert configurator.request_bytes(64)["full"] == 4 << 20


def test_a_small_state_gets_no_slots_that_nobody_can_use() -> None:
    """A log of LFM2-700M: 9/19 of the memory were 85,292 slots, 4.88 GB, for 4,096 requests at most."""
    layers = (
        Layer(states=[Attention(num_kv_heads=8, head_dim=64)]),
        Layer(states=[RecurrentState(tensors=[StateTensor(num_heads=1536, head_elements=2, role="conv")])]),
    )
    config = create_memory_pool_configurator(model_with(layers), RuntimeSpec()).calculate_pool_sizes(10 << 30)
    states = config.pool("mamba")
    assert states is not None
    assert states.slots == 3 * 4096
    assert config.max_running_requests <= 4096


@pytest.mark.parametrize(("slots", "asked", "served", "needed"), [(64, 16, 12, 80), (8, 4, 1, 20)])
def test_state_slots_that_serve_fewer_than_asked_are_told(slots: int, asked: int, served: int, needed: int) -> None:
    """noonghunna/club-3090#1323: 8 slots of 5 a request served one, and nobody was told what four would take."""
    runtime = RuntimeSpec(
        mamba_radix_cache_strategy="extra_buffer", max_mamba_cache_size=slots, max_running_requests=asked
    )
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained("Qwen/Qwen3.5-27B"), runtime)
    config = configurator.calculate_pool_sizes(60 << 30)
    assert config.max_running_requests == served
    assert any(f"max_mamba_cache_size={needed}" in note for note in plan_report(configurator, config, 1000)["notes"])


def test_the_padding_slots_of_states_are_inside_the_budget() -> None:
    """sgl-project/sglang#32184: a padding slot, and its copy for each drafted token, were half a gigabyte too much."""
    runtime = RuntimeSpec(speculative_algorithm="NGRAM", speculative_num_draft_tokens=4, max_running_requests=32)
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained("Qwen/Qwen3.5-27B"), runtime)
    config = configurator.calculate_pool_sizes(60 << 30)
    padding = {pool.name: pool.padding_slots for pool in config.pools}
    assert (padding["mamba"], padding["mamba_draft"]) == (1, 4)
    assert config.total_bytes <= 60 << 30


def test_rings_of_requests_do_not_grow_with_tokens() -> None:
    """sgl-project/sglang#28612: the c128 state of DeepSeek V4 was charged to each token, 2.39 times too much."""
    runtime = RuntimeSpec(page_size=256, max_running_requests=64)
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained("deepseek-ai/DeepSeek-V4-Flash"), runtime)
    rings = [configurator.calculate_pool_sizes(gib << 30).pool("c128_state") for gib in (20, 60)]
    assert rings[0] == rings[1]


def test_a_latent_is_whole_on_each_rank() -> None:
    """kaito-project/kaito#2139 divided it: 47 layers of 576 are 54,144 bytes on each of two ranks."""
    layers = (Layer(states=[LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64)]),) * 47
    config = create_memory_pool_configurator(model_with(layers), RuntimeSpec(tp_size=2)).calculate_pool_sizes(1 << 30)
    assert config.pools[0].cell_bytes == 54_144


def test_ranks_that_divide_tokens_hold_their_part_in_whole_pages() -> None:
    """sgl-project/sglang#36886: slots beyond the local buffer. 1,000 tokens on 4 ranks are 250 each: 4 pages of 64."""
    model = ModelSpec.from_pretrained("deepseek-ai/DeepSeek-V3")
    runtime = RuntimeSpec(tp_size=4, dcp_size=4, page_size=64, request_tokens=1000, count_request_table=False)
    configurator = create_memory_pool_configurator(model, runtime)
    assert configurator.request_bytes(1000) == {"full": 256 * 70_272}
    with pytest.raises(InsufficientMemoryError) as caught:
        configurator.calculate_pool_sizes(1)
    assert caught.value.required_bytes == (256 + 64) * 70_272


def test_unequal_stages_take_what_their_own_layers_take() -> None:
    """48 layers in stages of 16 and 32, 4 heads of 128, 262,144 tokens: 8 and 16 GiB, not 24."""
    layers = (Layer(states=[Attention(num_kv_heads=4, head_dim=128)]),) * 48
    for rank, gib in ((0, 8), (1, 16)):
        runtime = RuntimeSpec(
            pp_size=2, pp_layer_partition=(16, 32), pp_rank=rank, count_padding=False, count_request_table=False
        )
        configurator = create_memory_pool_configurator(model_with(layers), runtime)
        assert configurator.calculate_pool_sizes_from_max_tokens(262_144).total_bytes == gib << 30


def test_a_window_longer_than_the_context_holds_the_context() -> None:
    """tenstorrent/tt-xla#5860: rings of the whole window for requests of 128 tokens."""
    layers = (
        Layer(states=[Attention(num_kv_heads=4, head_dim=128)]),
        Layer(states=[Attention(num_kv_heads=4, head_dim=128, span=Span.window(4096))]),
    )
    runtime = RuntimeSpec(context_length=128, max_running_requests=8, count_request_table=False)
    with pytest.raises(InsufficientMemoryError, match="a window of 128 tokens"):
        create_memory_pool_configurator(model_with(layers), runtime).calculate_pool_sizes(1)
