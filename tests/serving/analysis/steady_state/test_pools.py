from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.fabric.kv_transfer import kv_transfer_ns, prompt_kv_bytes, prompt_transfer_ns
from emulator.specs.partition import Partition
from emulator.specs.systems import SYSTEMS
from serving.analysis.steady_state.partitions import PartitionCandidate, PartitionFilter
from serving.analysis.steady_state.pools import (
    DecodeOption,
    PrefillOption,
    best_split,
    mean_chip_watts,
    pooled_points,
)
from serving.analysis.steady_state.replica import MeanStep
from serving.analysis.steady_state.sweep import operating_points
from tests.serving.analysis.steady_state.small_machines import DENSE, MODEL, small_sweep, trays


def candidate(chips: int) -> PartitionCandidate:
    return PartitionCandidate(
        partition=Partition(chips=chips, ep=chips),
        replicas=1,
        first_chip=0,
        kv_capacity_tokens=10**6,
    )


def prefill(chips: int, *, requests_per_s: float, prompt_ns: float = 1e6) -> PrefillOption:
    """Each rank computes one prompt in a step as long as that rate asks."""
    step = MeanStep(duration_ns=chips / requests_per_s * 1e9, chip_watts_sum=800.0 * chips)
    return PrefillOption(
        precision="fp8", candidate=candidate(chips), step=step, prompts=1, prompt_ns=prompt_ns
    )


def decode(chips: int, *, requests_per_s: float) -> DecodeOption:
    """Each rank decodes 16 requests of 100 tokens at that rate."""
    tokens_per_s = requests_per_s * 100
    step = MeanStep(duration_ns=16 * chips / tokens_per_s * 1e9, chip_watts_sum=600.0 * chips)
    return DecodeOption(
        precision="fp8", candidate=candidate(chips), batch=16, step=step, output_tokens=100
    )


def test_eight_chips_are_split_where_both_pools_serve_alike() -> None:
    # A chip computes 30 prompts a second, or decodes 10 requests: 2 beside 6 serve 60 of both.
    split = best_split(trays(2), decode(1, requests_per_s=10), [prefill(1, requests_per_s=30)])

    assert split is not None
    assert (split.prefill_replicas, split.decode_replicas) == (2, 6)
    assert split.requests_per_s == pytest.approx(60)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 50),
)
def test_no_other_split_serves_more(options, decode_chips, decode_rate) -> None:
    prefills = [prefill(chips, requests_per_s=rate) for chips, rate in options]
    served = [
        min(count * rate, decodes * decode_rate)
        for chips, rate in options
        for decodes in range(1, 9)
        for count in range(1, 9)
        if count * chips + decodes * decode_chips <= 8
    ]

    split = best_split(trays(2), decode(decode_chips, requests_per_s=decode_rate), prefills)

    if not served:
        assert split is None
    else:
        assert split is not None
        assert split.requests_per_s == pytest.approx(max(served))


def test_a_pool_that_waits_for_the_other_one_draws_less() -> None:
    # Three chips decode 27 requests/s, one could prefill 30: it is busy nine tenths of the time.
    system, decoding = trays(1), decode(1, requests_per_s=9)
    idle = system.chip.idle_watts.value
    split = best_split(system, decoding, [prefill(1, requests_per_s=30)])

    assert split is not None
    assert (split.prefill_replicas, split.decode_replicas) == (1, 3)
    expected = (3 * 600 + 0.9 * 800 + 0.1 * idle) / 4
    assert mean_chip_watts(system, decoding, split) == pytest.approx(expected)


def test_kv_of_two_racks_is_handed_over_across_them() -> None:
    system = SYSTEMS["trn3-nl72x2"]
    kv_bytes = prompt_kv_bytes(DENSE, np.array(1_000))

    def between(first: int, second: int) -> float:
        return kv_transfer_ns(
            system,
            bytes_per_request=kv_bytes,
            from_chips=np.array([first]),
            to_chips=np.array([second]),
        )

    handed_over = prompt_transfer_ns(system, DENSE, prompt_tokens=1_000, from_chips=1, to_chips=1)

    assert handed_over == between(0, 72)
    assert handed_over > between(0, 1)


def test_pools_of_a_cluster_have_whole_units() -> None:
    cluster = SYSTEMS["dgx-h200"].cluster(3)

    split = best_split(cluster, decode(4, requests_per_s=1), [prefill(8, requests_per_s=100)])

    assert split is not None
    assert (split.prefill_replicas, split.decode_replicas) == (1, 4)


def test_no_two_pools_fit_into_chips_for_one() -> None:
    assert best_split(trays(1), decode(4, requests_per_s=1), [prefill(1, requests_per_s=1)]) is None


def test_a_pooled_point_balances_requests_and_never_holds_up_a_decode() -> None:
    sweep = small_sweep()
    points = pooled_points(sweep)

    assert points
    for point in points:
        assert point.prefill is not None
        used = point.candidate.replicas * point.candidate.partition.chips
        used += point.prefill.replicas * point.prefill.partition.chips
        assert used <= sweep.system.chips.count
        # Little's law: so many requests of so many tokens at such a time each are decoding at once.
        seconds = point.output_tokens * point.tpot_ns * 1e-9
        assert point.users == pytest.approx(point.requests_per_s * seconds)
        ranks = point.candidate.partition.ranks * point.candidate.replicas
        assert point.users <= ranks * point.batch * (1 + 1e-9)
        assert sweep.system.chip.idle_watts.value < point.chip_watts

    together = {(p.candidate.partition, p.batch): p for p in operating_points(sweep)}
    for point in points:
        mixed = together[point.candidate.partition, point.batch]
        assert point.tpot_ns <= mixed.tpot_ns
        assert point.ttft_ns >= min(p.ttft_ns for p in together.values())


def test_a_first_token_waits_for_the_prompt_and_for_its_kv() -> None:
    sweep = small_sweep(asked=PartitionFilter(tp=(1,), ep=(2,), lnc=(2,)), batches=(1,))
    (point,) = pooled_points(sweep)
    (alone,) = operating_points(sweep)

    waits_ns = prompt_transfer_ns(sweep.system, MODEL, prompt_tokens=512, from_chips=1, to_chips=1)

    assert waits_ns > 0
    assert point.ttft_ns == pytest.approx(alone.ttft_ns + waits_ns)


def test_kv_of_a_prompt_is_whole_in_full_layers_and_a_window_in_others() -> None:
    # gpt-oss-20b: 12 full layers, 12 with a window of 128; 2 x 8 heads x 64 x 2 bytes a layer.
    assert prompt_kv_bytes(MODEL, np.array(512)) == (12 * 512 + 12 * 128) * 2_048
    assert prompt_kv_bytes(MODEL, np.array(100)) == 24 * 100 * 2_048
    assert prompt_kv_bytes(DENSE, np.array(100)) == 100 * DENSE.kv_bytes_per_token


def test_kv_crosses_half_the_machine_and_between_units_the_network() -> None:
    box = SYSTEMS["dgx-h200"]
    inside = prompt_transfer_ns(box, DENSE, prompt_tokens=1_000, from_chips=2, to_chips=2)
    across = prompt_transfer_ns(
        box.cluster(2), DENSE, prompt_tokens=1_000, from_chips=2, to_chips=2
    )

    assert inside == kv_transfer_ns(
        box,
        bytes_per_request=prompt_kv_bytes(DENSE, np.array(1_000)),
        from_chips=np.array([0, 1]),
        to_chips=np.array([4, 5]),
    )
    assert across > inside
    # Over 50 GB/s a card, each of two chips sends half.
    assert across >= prompt_kv_bytes(DENSE, np.array(1_000)) / 2 / 50e9 * 1e9


def test_more_chips_in_both_ranks_hand_over_no_slower() -> None:
    box = SYSTEMS["dgx-h200"]
    times = [
        prompt_transfer_ns(box, DENSE, prompt_tokens=4_096, from_chips=size, to_chips=size)
        for size in (1, 2, 4)
    ]

    assert times == sorted(times, reverse=True)


def test_one_chip_has_no_room_for_two_pools() -> None:
    sweep = small_sweep(system=replace(trays(1, chips_per_tray=1)), batches=(1,))

    with pytest.raises(ConfigError):
        pooled_points(sweep)
