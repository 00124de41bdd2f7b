"""Drafts beside a model: which layers they are, and that they are kept in step with what they shadow."""

from __future__ import annotations

import dataclasses

import pytest

from poolplan import (
    Attention,
    InvalidOptionError,
    Layer,
    ModelSpec,
    RecurrentState,
    RuntimeSpec,
    Span,
    StateTensor,
    create_memory_pool_configurator,
)
from poolplan.workload import Workload

V3 = ModelSpec.from_pretrained("deepseek-ai/DeepSeek-V3")
LLAMA = ModelSpec.from_pretrained("meta-llama/Llama-3.1-8B")
DRAFT = dataclasses.replace(LLAMA, layers=LLAMA.layers[:1], name="draft")


def test_mtp_layers_draft_only_where_speculation_is_on() -> None:
    assert V3.drafts_for(RuntimeSpec()) == ()
    assert V3.drafts_for(RuntimeSpec(speculative_algorithm="NGRAM")) == ()
    assert V3.drafts_for(RuntimeSpec(speculative_algorithm="NEXTN")) == V3.mtp_layers == V3.layers[-1:]


def test_a_draft_model_takes_the_place_of_mtp_layers() -> None:
    both = V3.with_draft(DRAFT)
    assert both.drafts_for(RuntimeSpec(speculative_algorithm="EAGLE3")) == DRAFT.layers
    assert both.with_draft(DRAFT).drafts_for(RuntimeSpec()) == DRAFT.layers * 2


@pytest.mark.parametrize(("model", "algorithm"), [(LLAMA, "EAGLE"), (LLAMA, "STANDALONE"), (V3, "DFLASH")])
def test_an_algorithm_without_its_draft_is_refused(model: ModelSpec, algorithm: str) -> None:
    runtime = RuntimeSpec(speculative_algorithm=algorithm)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidOptionError, match="with_draft"):
        create_memory_pool_configurator(model, runtime)


def test_drafts_are_on_the_last_stage_and_have_its_tokens() -> None:
    model = LLAMA.with_draft(DRAFT)
    stages = [
        create_memory_pool_configurator(model, RuntimeSpec(pp_size=2, pp_rank=rank)).calculate_pool_sizes(8 << 30)
        for rank in (0, 1)
    ]
    drafts = [stage.pool("draft") for stage in stages]
    assert [draft.cell_bytes for draft in drafts if draft] == [0, 4096]
    assert {draft.slots for draft in drafts if draft} == {stages[0].max_total_num_tokens}
    # Layers of a draft are numbered after those of the model, as in its file.
    assert drafts[1] is not None
    assert drafts[1].layers == (32,)


def test_windows_of_a_draft_beside_a_model_without_windows_keep_every_token() -> None:
    window = Attention(num_kv_heads=8, head_dim=128, span=Span.window(512))
    model = LLAMA.with_draft(dataclasses.replace(DRAFT, layers=(Layer(states=[window]),)))
    config = create_memory_pool_configurator(model, RuntimeSpec()).calculate_pool_sizes(8 << 30)
    assert [pool.name for pool in config.pools] == ["full", "draft", "request_table"]


def test_the_state_of_a_draft_is_in_the_state_pool() -> None:
    state = RecurrentState(tensors=[StateTensor(num_heads=16, head_elements=16384)])
    model = LLAMA.with_draft(dataclasses.replace(DRAFT, layers=(Layer(states=[state]),)))
    config = create_memory_pool_configurator(model, RuntimeSpec(max_running_requests=8)).calculate_pool_sizes(8 << 30)
    states = config.pool("mamba")
    assert states is not None
    assert (states.slots, states.cell_bytes) == (24, 1 << 20)


@pytest.mark.parametrize("text", ["", "x", "1+2+3", "-1", "1.5", "3000-1000", "0"])
def test_a_workload_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError):
        Workload.parse(text)


def test_a_workload_is_input_and_output() -> None:
    assert Workload.parse("3000+1000") == Workload(3000, 1000)
    assert Workload.parse("3000") == Workload(input_tokens=3000)
