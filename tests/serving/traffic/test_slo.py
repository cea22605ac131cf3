"""The latency targets that serving takes, out of the load generator's grammar."""

import pytest

from emulator.errors import ConfigError
from serving.traffic.slo import parse_slo


@pytest.mark.parametrize("text", ["ttft=500ms,tpot=30ms@p95", "tpot=250us@p99.9", "ttft=1h@p10"])
def test_what_the_load_generator_reads_of_ttft_and_tpot_is_taken(text: str) -> None:
    assert parse_slo(text).words == text


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=500", "ttft=0ms", "itl=3ms", "ttft=1s,e2e=9s", "ttft=1s@p50,ttft=2s@p99"],
)
def test_another_target_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="ttft=500ms,tpot=30ms@p99") as refusal:
        parse_slo(text)

    assert "\n" not in str(refusal.value)
