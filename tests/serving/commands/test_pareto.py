import json
from pathlib import Path

import pytest

from serving.main import main

SMALL = [
    *["pareto", "--model", "gpt-oss-20b", "--systems", "dgx-h200,trn2.48xlarge"],
    *["--tp", "1", "--ep", "1,2", "--precision", "fp8", "--batch", "1,16", "--processes", "1"],
]


def asked(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main([*SMALL, *more]) == 0
    return capsys.readouterr().out


def test_json_on_standard_output_is_json_alone(capsys) -> None:
    data = json.loads(asked(capsys, "--json", "-", "--input", "100", "--output", "50"))

    assert [machine["system"] for machine in data["machines"]] == ["dgx-h200", "trn2.48xlarge"]
    for machine in data["machines"]:
        assert (machine["prompt_tokens"], machine["output_tokens"]) == (100, 50)
        assert {point["ep"] for point in machine["points"]} == {1, 2}
        assert {point["batch"] for point in machine["points"]} == {1, 16}
        assert {point["precision"] for point in machine["points"]} == {"fp8"}


@pytest.mark.long
def test_it_writes_json_and_a_page(capsys, tmp_path: Path) -> None:
    asked(capsys, "--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.html"))

    assert json.loads((tmp_path / "a.json").read_text())["model"] == "gpt-oss-20b"
    assert (tmp_path / "a.html").read_text().lstrip().startswith("<!DOCTYPE html>")


def test_a_reading_is_taken_by_the_machines_that_have_its_switch(capsys) -> None:
    few = ["--model", "gpt-oss-20b", "--systems", "trn3-nl72x2", "--tp", "1", "--ep", "4"]
    few += ["--lnc", "2", "--batch", "16", "--precision", "fp8", "--processes", "1", "--json", "-"]

    def per_user(*more: str) -> float:
        assert main(["pareto", *few, *more]) == 0
        (machine,) = json.loads(capsys.readouterr().out)["machines"]
        return float(machine["points"][0]["tokens_per_s_per_user"])

    assert per_user("--assumption", "links=aws_text") < per_user()


def test_a_machine_may_have_a_figure_of_its_own_and_is_then_another(capsys) -> None:
    changed = "trn3-nl72x2:hbm_bandwidth=2x"
    few = ["--model", "gpt-oss-20b", "--systems", f"trn3-nl72x2,{changed},dgx-h200", "--tp", "1"]
    few += ["--ep", "4", "--batch", "16", "--precision", "fp8", "--processes", "1", "--json", "-"]

    assert main(["pareto", *few, "--set", "switch_hop=230ns", "--set", "dma_engines=1x"]) == 0
    by_name = {each["system"]: each for each in json.loads(capsys.readouterr().out)["machines"]}

    def per_user(name: str) -> float:
        return max(float(each["tokens_per_s_per_user"]) for each in by_name[name]["points"])

    assert per_user(changed) > per_user("trn3-nl72x2")
    assert by_name[changed]["assumptions"] == [
        *("hop_ns=230ns", "hbm_bytes_per_s=2x", "dma_bytes_per_s=2x", "dma_engines=1x"),
    ]
    assert by_name["dgx-h200"]["assumptions"] == ["hop_ns=230ns"]  # a GPU has no DMA engines


def test_an_lnc_is_for_the_machines_whose_chips_have_it(capsys) -> None:
    data = json.loads(asked(capsys, "--lnc", "1", "--json", "-"))

    lncs = {m["system"]: {point["lnc"] for point in m["points"]} for m in data["machines"]}
    assert lncs == {"dgx-h200": {132}, "trn2.48xlarge": {1}}
    assert main([*SMALL, "--lnc", "3"]) == 2
    assert "lnc=3: expected one of" in capsys.readouterr().err


def test_a_fitted_calibration_takes_longer_than_the_ceiling(capsys) -> None:
    def per_user(*more: str) -> list[float]:
        machines = json.loads(asked(capsys, "--json", "-", *more))["machines"]
        return [machine["points"][0]["tokens_per_s_per_user"] for machine in machines]

    fitted, ceiling = per_user("--calibration", "fitted"), per_user("--calibration", "roofline")

    assert all(slow < fast for slow, fast in zip(fitted, ceiling, strict=True))


@pytest.mark.long
def test_pools_of_their_own_are_named_in_the_table(capsys) -> None:
    text = asked(capsys, "--serving", "disaggregated")

    assert "same chips" not in text
    assert "(tp 1 ep " in text


@pytest.mark.long
def test_prices_add_dollars(capsys) -> None:
    assert "$/M out" in asked(capsys, "--price-chip-hour", "2")
    assert "$/M out" not in asked(capsys)


@pytest.mark.process
def test_a_target_adds_simulated_points_to_the_table_and_the_data(capsys) -> None:
    few = ["pareto", "--model", "qwen3-30b-a3b", "--systems", "trn3-nl72x2", "--chips", "1"]
    few += ["--lnc", "2", "--precision", "stored", "--batch", "1,16", "--processes", "1"]
    few += ["--input", "400", "--output", "12", "--slo", "ttft=300ms,tpot=20ms@p90"]
    few += ["--requests", "30"]

    assert main([*few, "--json", "-"]) == 0
    simulated = json.loads(capsys.readouterr().out)["simulated"]
    assert simulated["is_whole"]
    (point,) = simulated["points"]
    assert point["requests_per_s"] > 0
    assert sum(point["losses"].values()) == pytest.approx(
        1 - point["requests_per_s"] / point["steady_requests_per_s"]
    )
    assert main(few) == 0
    words = f"144 x 1 chip (tp 1, ep 1, lnc 2), {point['prefill_policy']}"
    assert words in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--model", "gpt-5"], "model=gpt-5: expected one of qwen3-30b-a3b,"),
        (["--systems", "dgx-h200,dgx-x"], "system=dgx-x: expected one of"),
        (["--systems", "dgx-h200,dgx-h200"], "systems=dgx-h200: expected each system once"),
        (["--tp", "3"], "partition=tp=3 ep=1,2: expected tp that divides the 64 heads"),
        (["--tp", "one"], "tp=one: expected whole numbers, as 1,2,4"),
        (["--tp", "0"], "tp=0: expected at least 1"),
        (["--batch", "0"], "batch=0: expected at least 1"),
        (["--batch", "9999999"], "batch=9999999: expected one that fits the KV pool"),
        (["--precision", "fp2"], "precision=fp2: expected one of bf16, fp8"),
        (["--input", "0"], "--input=0: expected 512, uniform:64-1024"),
        (["--max-num-batched-tokens", "0"], "max-num-batched-tokens=0: expected at least 1"),
        (["--overlap", "some"], "overlap=some: expected one of none, two-batch, full"),
        (["--calibration", "mine"], "calibration=mine: expected one of roofline, fitted"),
        (["--power", "nuclear"], "power=nuclear: expected one of provisioned, drawn, all-in"),
        (["--season", "monsoon"], "season=monsoon: expected one of peak,"),
        (["--assumption", "links"], "links"),
        (["--assumption", "nothing=x"], "assumption=nothing"),
        (["--set", "hop_ns=fast"], "hop_ns=fast: expected 2x, +10%"),
        (["--set", "chips=2x"], "chips=2x: expected 8 chips"),
        (["--routing", "zipf:x"], "routing=zipf:x: expected"),
        (["--units", "0"], "units=0: expected at least 1"),
        (["--gpu-memory-utilization", "2"], "gpu_memory_utilization=2.0: expected above 0"),
        (["--price-kwh", "-1"], "kwh_dollars=-1.0: expected at least 0"),
        (["--plot", "a.jpg"], "plot=a.jpg: expected a path that ends in .png"),
        (["--plot", "no/such/a.html"], "plot=no/such/a.html: expected a path in a folder"),
        (["--json", "no/such/a.json"], "json=no/such/a.json: expected a path in a folder"),
        (["--rows", "1"], "rows=1: expected at least 2"),
        (["--processes", "0"], "processes=0: expected at least 1"),
        (["--slo", "soon"], "slo=soon: expected ttft=500ms,tpot=30ms@p99"),
        (["--slo", "e2e=1s"], "slo=e2e=1s: expected ttft=500ms,tpot=30ms@p99"),
        (["--budget", "1m"], "budget=60.0: expected nothing without --slo"),
        (["--requests", "9"], "requests=9: expected nothing without --slo"),
        (["--slo", "ttft=1s", "--requests", "0"], "requests=0: expected at least 1"),
        (
            ["--slo", "ttft=1s", "--units", "2", "--serving", "both"],
            "serving=both: expected aggregated with --slo and several units",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more: list[str], says: str, capsys) -> None:
    assert main([*SMALL, *more]) == 2

    refused = capsys.readouterr()
    assert refused.out == ""
    assert refused.err.startswith("ultraserve pareto: ")
    assert says in refused.err
    assert refused.err.count("\n") == 1
