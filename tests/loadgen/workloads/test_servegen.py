"""Client mixes in ServeGen's form, with files written by hand."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import FileError, OptionError
from loadgen.workloads.plan import plan_workload
from loadgen.workloads.recording import Recording
from loadgen.workloads.servegen import read_servegen
from loadgen.workloads.trace_file import read_trace, trace_format
from loadgen.workloads.workload_spec import WorkloadSpec

Lengths = Mapping[int, tuple[str, str]]


def client(folder: Path, number: int, rows: list[str], lengths: Lengths) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
    periods = {
        begin: {"input_tokens": prompt, "output_tokens": reply}
        for begin, (prompt, reply) in lengths.items()
    }
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(periods))


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    """A large client and a small one that is silent for ten minutes, then longer in its words."""
    folder = tmp_path / "mix"
    client(
        folder,
        1,
        ["0,0.5,1.0,Gamma,1.0,2.0", "600,0.25,1.0,Weibull,1.0,4.0", "1200,0,0,,0,0"],
        {0: ("{100: 0.75, 101: 0.25}", "{7: 1.0}")},
    )
    client(
        folder,
        20,
        ["0,0.01,2.0,Gamma,0.25,9.0", "600,0,0,,0,0", "1200,0.02,2.0,Gamma,0.25,9.0"],
        {0: ("{2000: 1.0}", "{30: 1.0}"), 1200: ("{3000: 1.0}", "{0: 0.5, 40: 0.5}")},
    )
    return folder


def counts(found: Recording, of_client: np.ndarray) -> list[int]:
    """Requests in each ten minutes."""
    return np.bincount(found.arrivals_ns[of_client] // (600 * 10**9), minlength=3).tolist()


def test_each_client_sends_as_many_as_were_recorded_at_its_lengths(mix: Path) -> None:
    found = read_servegen(mix, seed=4)
    large = found.input_tokens < 1_000

    # 0.5/s and 0.25/s for 600 s; 0.01/s, and 0.02/s.
    assert len(found) == 300 + 150 + 6 + 12
    # Times count from the first request, some seconds after 0.
    assert np.abs(np.subtract(counts(found, large), [300, 150, 0])).max() <= 2
    assert counts(found, ~large) == [6, 0, 12]
    assert set(found.output_tokens[large]) == {7}
    assert (found.input_tokens[large] == 101).sum() == pytest.approx(450 / 4, abs=40)
    small_s = found.arrivals_ns[~large] / 1e9
    assert set(found.input_tokens[~large][small_s < 600]) == {2_000}
    assert set(found.input_tokens[~large][small_s > 1_100]) == {3_000}
    assert set(found.output_tokens[~large]) == {30, 1, 40}  # no reply has 0 tokens
    assert (np.diff(found.arrivals_ns) >= 0).all()
    assert found.notes == ()


@pytest.mark.parametrize(
    ("gaps", "shape", "cv"), [("Gamma", 0.25, 2.0), ("Gamma", 1.0, 1.0), ("Weibull", 0.5, 5**0.5)]
)
def test_gaps_have_the_spread_of_their_distribution(
    tmp_path: Path, gaps: str, shape: float, cv: float
) -> None:
    # CV of gamma gaps: 1 / sqrt(shape). Of Weibull gaps of shape 1/2: sqrt(5).
    row = f"{{}},20,{cv},{gaps},{shape},1.0"
    client(tmp_path, 1, [row.format(0), row.format(1_000)], {0: ("{9: 1}", "{9: 1}")})
    gaps_ns = np.diff(read_servegen(tmp_path, seed=1).arrivals_ns)

    assert len(gaps_ns) == 40_000 - 1
    assert gaps_ns.mean() == pytest.approx(1e9 / 20, rel=0.01)
    assert gaps_ns.std() / gaps_ns.mean() == pytest.approx(cv, rel=0.05)


def test_a_window_and_a_number_draw_the_same_requests(mix: Path) -> None:
    whole = read_servegen(mix, seed=4)
    begun_ns = whole.arrivals_ns
    part = read_servegen(mix, seed=4, window_s=(600.0, 1_300.0))
    first = read_servegen(mix, seed=4, sessions=200)
    other = read_servegen(mix, seed=5)

    assert 150 <= len(part) < 150 + 12
    assert part.input_tokens.tolist() == whole.input_tokens[-162:][: len(part)].tolist()
    assert len(first) == 306  # the windows in which the first 200 are
    assert first.arrivals_ns.tolist() == begun_ns[:306].tolist()
    assert other.arrivals_ns.tolist() != begun_ns.tolist()


def test_a_folder_is_a_trace_for_the_load_generator(mix: Path) -> None:
    spec = WorkloadSpec(trace=mix, sessions=50)
    plan = plan_workload(spec, sessions=None, seed=4)
    recording = read_servegen(mix, seed=4)

    assert trace_format(mix) == "servegen"
    assert plan.requests == 50
    assert plan.arrivals_ns == recording.arrivals_ns[:50].tolist()
    assert "mix (servegen)" in plan.words
    found = read_trace(spec, seed=4)
    assert found is not None
    assert len(found) == len(recording)


def test_gaps_too_short_for_a_number_come_at_once(tmp_path: Path) -> None:
    row = "{},1,1000,Gamma,1e-6,1.0"
    client(tmp_path, 1, [row.format(0), row.format(50)], {0: ("{9: 1}", "{9: 1}")})

    assert len(read_servegen(tmp_path, seed=0)) == 100


def test_a_client_without_lengths_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = ["0,0.1,1,Gamma,1,1", "100,0.2,1,Gamma,1,1"]
    client(tmp_path, 1, rows, {0: ("{}", "{}"), 100: ("{5: 1}", "{6: 1}")})
    found = read_servegen(tmp_path, seed=0)

    assert set(found.input_tokens) == {5}
    assert found.notes == ("10 requests of clients whose lengths were not recorded left out",)


@pytest.mark.parametrize(
    ("rows", "lengths", "says"),
    [
        (["0,1,1,Gamma,1"], {}, "trace.csv:1: expected 6 fields, found 5"),
        (["0,1,1,Gamma,1,1"], {}, "trace.csv: expected two rows"),
        (["0,1,1,Gamma,1,1", "0,1,1,,0,0"], {}, "trace.csv:2: 0 is not a whole second after"),
        (["0,1,1,Zipf,1,1", "9,0,0,,0,0"], {}, "trace.csv:1: the gaps 'Zipf' are not one of"),
        (["0,1,1,Gamma,0,1", "9,0,0,,0,0"], {}, "trace.csv:1: the shape 0 is not above 0"),
        (["0,-1,1,Gamma,1,1", "9,0,0,,0,0"], {}, "trace.csv:1: '-1' is not a number from 0"),
        (["0,0,0,,0,0", "9,0,0,,0,0"], {}, "mix: no client sends anything in this time"),
        (["0,1,1,Gamma,1,1", "9,0,0,,0,0"], {0: ("[5]", "{5: 1}")}, "expected {TOKENS: WEIGHT"),
        (["0,1,1,Gamma,1,1", "9,0,0,,0,0"], {0: ("{x: 1}", "{5: 1}")}, "input_tokens: 'x' is not"),
        (["0,1,1,Gamma,1,1", "9,0,0,,0,0"], {0: ("{5: y}", "{5: 1}")}, "'y' is not a number"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    rows: list[str], lengths: Lengths, says: str, tmp_path: Path
) -> None:
    client(tmp_path / "mix", 1, rows, lengths)
    with pytest.raises(FileError) as refused:
        read_servegen(tmp_path / "mix", seed=0)
    assert says in str(refused.value)


def test_what_is_no_mix_of_text_clients_is_refused(tmp_path: Path, mix: Path) -> None:
    with pytest.raises(FileError, match=r"has no chunk-N-trace\.csv"):
        read_servegen(tmp_path, seed=0)
    with pytest.raises(FileError, match="no client sends anything"):
        read_servegen(mix, seed=0, window_s=(9e5, 9e6))
    images = {"0": {"text_tokens": "{5: 1}", "image_tokens": "{5: 1}"}}
    (mix / "chunk-1-dataset.json").write_text(json.dumps(images))
    with pytest.raises(FileError, match="expected input_tokens and output_tokens: clients of text"):
        read_servegen(mix, seed=0)
    row = "{},20000,1,Gamma,1,1"
    client(mix, 1, [row.format(0), row.format(600)], {0: ("{9: 1}", "{9: 1}")})
    with pytest.raises(OptionError, match=r"^--window=None: expected a part with at most"):
        read_servegen(mix, seed=0)
