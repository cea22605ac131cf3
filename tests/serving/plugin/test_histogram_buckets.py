"""Bounds of vLLM's histograms."""

import pytest
from vllm.config import ObservabilityConfig
from vllm.v1.metrics.buckets import histogram_buckets

from serving.plugin.platform import fine_buckets

FAMILIES = ("inter_token_latency", "time_to_first_token", "request_latency")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_bound_of_vllm_s_is_there_and_a_step_of_a_millisecond_is_told(family: str) -> None:
    bounds = fine_buckets(None)[family]

    assert set(histogram_buckets(family)) < set(bounds)  # type: ignore[arg-type]
    assert bounds == sorted(set(bounds))
    assert sum(bound < 0.01 for bound in bounds) >= 6


def test_a_decode_step_of_a_millisecond_is_told_within_a_quarter() -> None:
    bounds = fine_buckets(None)["inter_token_latency"]
    for step_s in (0.0008, 0.001, 0.0012, 0.0019, 0.0028):
        above = min(bound for bound in bounds if bound >= step_s)
        below = max(bound for bound in bounds if bound < step_s)
        assert above - below <= 0.0005 * max(1.0, step_s / 0.002)
    assert bounds[0] == 0.0001


def test_the_user_s_bounds_win_and_the_others_are_ours() -> None:
    bounds = fine_buckets({"time_to_first_token": [1.0, 2.0]})
    assert bounds["time_to_first_token"] == [1.0, 2.0]
    assert bounds["inter_token_latency"] == fine_buckets(None)["inter_token_latency"]


def test_vllm_takes_them() -> None:
    config = ObservabilityConfig(custom_histogram_buckets=fine_buckets(None))
    assert config.custom_histogram_buckets == fine_buckets(None)
