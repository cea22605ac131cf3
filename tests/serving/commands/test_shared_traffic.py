import argparse
import json

import pytest

from emulator.errors import ConfigError
from emulator.fabric.traffic_classes import TrafficClass
from emulator.specs.systems import system_by_name
from serving.commands import collectives
from serving.commands.shared_traffic import shared_lines

NL72X2, H200 = system_by_name("trn3-nl72x2"), system_by_name("dgx-h200")
KEYS = {TrafficClass.KV_TRANSFER: 1_024_000}


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    collectives.add_parser(parser.add_subparsers())
    args = parser.parse_args(["collectives", *arguments])
    code: int = args.run(args)
    return code


def test_keys_and_values_wait_for_an_all_to_all_of_a_tray_by_hand() -> None:
    exchange, keys = shared_lines(NL72X2, [1_024_000], KEYS, chips=4, ranks_per_chip=1)

    # three quarters of 1,024,000 bytes at 512 a ns, then all of as many; a start and a hop
    assert exchange.together_ns == exchange.alone_ns == pytest.approx(1_500 + 2_300)
    assert keys.alone_ns == pytest.approx(2_000 + 2_300)
    assert keys.together_ns == pytest.approx(1_500 + 2_000 + 2_300)


def test_without_classes_an_all_to_all_shares_its_links_by_hand() -> None:
    checkpoint = {TrafficClass.CHECKPOINT: 675_000}
    exchange, other = shared_lines(H200, [900_000], checkpoint, chips=4, ranks_per_chip=1)
    latency_ns = H200.chip.dma_start_ns.value + H200.hop_ns.value

    # 675,000 bytes each at half of 450 a ns
    assert exchange.classes == 1
    assert exchange.together_ns == pytest.approx(3_000 + latency_ns)
    assert other.together_ns == pytest.approx(3_000 + latency_ns)


@pytest.mark.parametrize("name", ["trn3-nl72x2", "trn2.48xlarge", "mi300x-8", "dgx-h200"])
def test_traffic_beside_it_never_makes_any_transfer_faster(name: str) -> None:
    beside = {TrafficClass.KV_TRANSFER: 10**6, TrafficClass.EXPERT_MOVE: 10**7}
    for line in shared_lines(
        system_by_name(name), [1_000, 10**7], beside, chips=8, ranks_per_chip=2
    ):
        assert line.together_ns >= line.alone_ns - 1e-6


def test_the_command_prints_who_waits(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--system", "trn3-nl72x2,dgx-h200", "--sizes", "1MiB", "--chips", "4")
    assert run(*asked, "--beside", "kv-transfer=1MiB,checkpoint=4MiB") == 0
    text = capsys.readouterr().out
    assert "trn3-nl72x2, all-to-all and other traffic at once: 4 classes" in text
    assert "dgx-h200, all-to-all and other traffic at once: shared fairly" in text

    assert run(*asked, "--beside", "kv-transfer=1MiB", "--json") == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["traffic"] for line in lines] == ["collective", "kv-transfer"] * 2
    assert lines[0]["together_ns"] == lines[0]["alone_ns"]
    assert lines[2]["together_ns"] > lines[2]["alone_ns"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv=1", "beside=kv=1: expected TRAFFIC=SIZE, traffic one of kv-transfer"),
        ("kv-transfer", "beside=kv-transfer: expected TRAFFIC=SIZE"),
        ("collective=1MiB", "beside=collective=1MiB"),
        ("kv-transfer=x", "sizes=x: expected sizes such as"),
        ("checkpoint=1,checkpoint=2", "beside=checkpoint: expected each traffic once"),
        (",", "beside=,: expected at least one name"),
    ],
)
def test_what_cannot_be_sent_is_named_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run("--beside", text)
    assert str(refused.value).startswith(message)


def test_one_chip_has_no_links_to_share() -> None:
    with pytest.raises(ConfigError, match="chips=1: expected 2 or more"):
        run("--chips", "1", "--ranks", "4", "--beside", "kv-transfer=1MiB")
