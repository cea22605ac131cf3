import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.draw import wanted_watts
from emulator.power.system_power import SystemPower
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.models import MODELS
from tests.emulator.ultraserver.tiny_steps import (
    Row,
    batch_of,
    cost_model,
    same_on_each,
)

TRAY = cost_model(4)

rows_strategy = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 600), st.integers(0, 5_000)),
    min_size=1,
    max_size=12,
)


def test_decode_of_qwen3_30b_a3b_on_a_tray_is_bound_by_reading_weights() -> None:
    cost = TRAY.cost(same_on_each(4, requests=16, new=1, context=1_000))

    assert 3e6 < cost.duration_ns < 6e6
    assert cost.engine_ns["dma"].min() > 0.85 * cost.duration_ns
    # attention, LM head and nearly all experts of a chip, once, and the cache of 16 requests
    model = QWEN3_30B_A3B
    replica = model.parameters - 48 * 128 * model.expert_parameters
    embedding = 151_936 * 2_048
    weight_bytes = 2 * (replica - embedding + 48 * 32 * model.expert_parameters)
    kv_bytes = 16 * 1_000 * 98_304
    assert cost.engine_ns["dma"][0] == pytest.approx((weight_bytes + kv_bytes) / 4_224, rel=0.03)


def test_a_long_prefill_is_bound_by_the_tensor_engine() -> None:
    cost = TRAY.cost(same_on_each(4, requests=1, new=2_048, context=0))

    busiest = max(cost.engine_ns, key=lambda name: int(cost.engine_ns[name].max()))
    assert busiest == "tensor"
    # twice the active parameters per token, embedding and most LM-head rows left out
    flops = 2 * 2_048 * (QWEN3_30B_A3B.active_parameters - 2 * 151_936 * 2_048)
    assert cost.engine_ns["tensor"][0] > flops / 629_145.6


def test_a_step_lasts_as_long_as_its_slowest_rank_and_others_wait_at_their_idle_power() -> None:
    cost = TRAY.cost(batch_of(4, [(2, 1, 30_000)] * 8 + [(0, 1, 10)]))

    assert cost.duration_ns == cost.rank_ns.max() == cost.rank_ns[2]
    assert cost.chip_watts.argmax() == 2
    assert (cost.chip_watts >= TRAY.idle_chip_watts).all()
    assert cost.rank_ns[1] < cost.rank_ns[0] < cost.rank_ns[2]


def test_a_step_without_requests_takes_no_time_and_no_energy() -> None:
    cost = TRAY.cost(batch_of(4, []))

    assert cost.duration_ns == 0
    assert cost.chip_joules == 0
    assert cost.chip_watts.tolist() == [200] * 4
    assert all(not busy.any() for busy in cost.engine_ns.values())
    assert cost.engine_ns.keys() == TRAY.cost(batch_of(4, [(0, 1, 0)])).engine_ns.keys()


@given(rows=rows_strategy)
def test_energy_is_watts_times_time_and_no_engine_is_busier_than_the_step(rows: list[Row]) -> None:
    cost = TRAY.cost(batch_of(4, rows))

    joules = sum(watts * cost.duration_ns / 1e9 for watts in cost.chip_watts)
    assert cost.chip_joules == pytest.approx(joules)
    for busy in cost.engine_ns.values():
        assert busy.shape == (4,)
        assert busy.dtype == np.int64
        assert (busy >= 0).all()
        assert (busy <= cost.duration_ns).all()
    assert ((cost.chip_watts >= 200) & (cost.chip_watts <= 1_000)).all()


@given(
    rows=rows_strategy,
    place=st.integers(0, 11),
    tokens=st.integers(0, 300),
    context=st.integers(0, 3_000),
)
def test_more_tokens_or_more_context_never_make_a_step_shorter(
    rows: list[Row], place: int, tokens: int, context: int
) -> None:
    place %= len(rows)
    rank, new, cached = rows[place]
    more = [*rows]
    more[place] = (rank, new + tokens, cached + context)

    less_cost, more_cost = TRAY.cost(batch_of(4, rows)), TRAY.cost(batch_of(4, more))

    assert more_cost.duration_ns >= less_cost.duration_ns
    assert (more_cost.rank_ns >= less_cost.rank_ns).all()
    for name, busy in less_cost.engine_ns.items():
        assert (more_cost.engine_ns[name] >= busy).all()


@given(rows=rows_strategy, extra=st.tuples(st.integers(0, 3), st.integers(1, 99), st.just(0)))
def test_one_more_request_never_makes_a_step_shorter(rows: list[Row], extra: Row) -> None:
    more = TRAY.cost(batch_of(4, [*rows, extra]))

    assert more.duration_ns >= TRAY.cost(batch_of(4, rows)).duration_ns


@given(rows=rows_strategy)
def test_ranks_with_the_same_work_cost_the_same_in_any_order_of_requests(rows: list[Row]) -> None:
    own = [(new, context) for _, new, context in rows]
    everywhere = [(rank, new, context) for rank in range(4) for new, context in own]

    cost = TRAY.cost(batch_of(4, everywhere))
    reordered = TRAY.cost(batch_of(4, everywhere[::-1]))

    assert len(set(cost.rank_ns.tolist())) == 1
    assert len(set(cost.chip_watts.tolist())) == 1
    assert reordered.duration_ns == cost.duration_ns


def test_facility_power_is_that_of_the_chips_share_of_the_system_on_the_design_day() -> None:
    whole = SystemPower(TRAY.system).facility_watts(144 / 4 * 2_000, chips=144)
    assert TRAY.facility_watts(2_000) == pytest.approx(4 / 144 * whole.total_watts)
    assert TRAY.provisioned_watts == pytest.approx(163_339 * 4 / 144)


def test_the_stated_distribution_of_experts_is_part_of_the_model() -> None:
    assert TRAY.routing == "uniform (expected value)"


def test_a_partition_or_a_batch_that_does_not_belong_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="would fit"):
        cost_model(3, tp=3)  # 32 query heads
    with pytest.raises(ConfigError, match="at most 144"):
        cost_model(145)
    with pytest.raises(ValueError, match="2 ranks in a batch for 4"):
        TRAY.cost(batch_of(2, [(0, 1, 1)]))


def test_power_is_of_the_flops_that_are_done_at_the_rate_of_their_format() -> None:
    model = MODELS["llama-3.1-8b"].at_precision("fp8")
    costs = cost_model(1, model)
    cost = costs.cost(same_on_each(1, requests=1, new=1_024, context=0))

    # all matrices of the layers run in FP8; scores, sums and the LM head of one row do not
    norms = (2 * model.layers + 1) * model.hidden
    fp8_flops = 2 * 1_024 * (model.parameters - model.embedding_parameters - norms)
    bf16_flops = cost.flops[0] - fp8_flops
    own_flops = 32 * 32 * 4 * 128 * (1_024 * 1_025 / 2)
    assert bf16_flops == pytest.approx(own_flops + 2 * model.vocab * model.hidden, rel=1e-9)
    shares = {
        name: busy / cost.duration_ns for name, busy in cost.engine_ns.items() if name != "tensor"
    }
    shares["tensor_bf16"] = np.array([bf16_flops / 629_145.6 / cost.duration_ns])
    shares["tensor_fp8"] = np.array([fp8_flops / 2_516_582.4 / cost.duration_ns])
    chip = costs.system.chip
    held = np.minimum(wanted_watts(chip, shares), chip.budget_watts.value)
    assert cost.chip_watts == pytest.approx(held, rel=1e-4)
