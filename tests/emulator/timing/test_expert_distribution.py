import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.llama_3_1 import LLAMA_3_1_8B
from emulator.specs.catalog.mixtral_8x7b import MIXTRAL_8X7B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.expert_sets import pick_chances

MODEL = replace(MIXTRAL_8X7B, layers=3)  # 8 experts, of which a token picks 2


def test_uniform_picks_every_expert_equally_often() -> None:
    uniform = ExpertDistribution.parse("uniform", MODEL, seed=0)

    assert uniform.name == "uniform"
    assert uniform.probability.tolist() == [[0.25] * 8] * 3


def test_zipf_ranks_the_experts_of_each_layer_by_the_seed() -> None:
    zipf = ExpertDistribution.parse("zipf:1.5", MODEL, seed=7)
    again = ExpertDistribution.parse("zipf:1.5", MODEL, seed=7)
    other = ExpertDistribution.parse("zipf:1.5", MODEL, seed=8)

    assert zipf.name == "zipf:1.5 (seed 7)"
    assert zipf.odds.tolist() == again.odds.tolist() != other.odds.tolist()
    assert len({tuple(row) for row in zipf.odds.tolist()}) == 3
    for row in zipf.odds:
        assert sorted(row, reverse=True) == pytest.approx([rank**-1.5 for rank in range(1, 9)])
    assert zipf.probability == pytest.approx(pick_chances(zipf.odds, 2))
    assert zipf.probability.sum(axis=1) == pytest.approx(2)


def test_a_zipf_exponent_of_zero_is_uniform() -> None:
    flat = ExpertDistribution.parse("zipf:0", MODEL, seed=0)

    assert flat.probability == pytest.approx(np.full((3, 8), 0.25))


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_recorded_loads_are_picked_in_proportion(tmp_path: Path, ending: str) -> None:
    loads = [[5, 1, 1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 1, 2, 3, 4], [0, 0, 1, 1, 1, 1, 0, 0]]
    path = tmp_path / f"loads.{ending}"
    if ending == "json":
        path.write_text(json.dumps({"model": MODEL.name, "loads": loads}))
    else:
        path.write_text("\n".join(",".join(map(str, row)) for row in loads) + "\n")

    recorded = ExpertDistribution.parse(str(path), MODEL, seed=0)

    assert recorded.name == f"recorded:loads.{ending}"
    shares = np.array(loads) / np.array(loads).sum(axis=1, keepdims=True)
    assert recorded.probability == pytest.approx(2 * shares)
    assert pick_chances(recorded.odds, 2) == pytest.approx(recorded.probability, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zipf:", "zipf:S with S from 0"),
        ("zipf:-1", "zipf:S with S from 0"),
        ("zipf:nan", "zipf:S with S from 0"),
        ("gauss", "uniform, zipf:EXPONENT, or"),
        ("absent.json", "a file that can be read"),
    ],
)
def test_a_distribution_that_does_not_exist_is_refused_in_one_line(
    text: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=f"^routing={text}: expected {expected}") as caught:
        ExpertDistribution.parse(text, MODEL, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "JSON"),
        ("[]", 'an object with "model" and "loads"'),
        ('{"model": "other", "loads": []}', "loads of mixtral-8x7b, not of other"),
        ('{"model": "mixtral-8x7b", "loads": [[1], [1, 2]]}', "equally many numbers"),
        ('{"model": "mixtral-8x7b", "loads": [[1, 2]]}', r"3 layers of 8 loads, not \(1, 2\)"),
        ('{"model": "mixtral-8x7b", "loads": [["a"]]}', "numbers"),
    ],
)
def test_a_file_without_the_models_loads_is_refused_in_one_line(
    tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "loads.json"
    path.write_text(content)

    with pytest.raises(
        ConfigError, match=f"^routing=.*loads.json: expected .*{expected}"
    ) as caught:
        ExpertDistribution.parse(str(path), MODEL, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        (np.full((3, 8), -1.0), "at least 0"),
        (np.full((3, 8), np.inf), "at least 0"),
        (np.zeros((3, 8)), "a load in every layer"),
        (np.eye(3, 8), "at most once"),
    ],
)
def test_loads_that_no_router_makes_are_refused(
    loads: np.ndarray[tuple[int, int], np.dtype[np.float64]], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        ExpertDistribution.recorded(MODEL, loads, name="x")


def test_a_dense_model_has_nothing_to_distribute() -> None:
    assert ExpertDistribution.parse("zipf:1", LLAMA_3_1_8B, seed=0).odds.shape == (0, 0)


def test_every_layer_of_a_large_model_sums_to_its_picks() -> None:
    zipf = ExpertDistribution.zipf(QWEN3_30B_A3B, exponent=1.2, seed=3)

    assert zipf.probability.shape == (48, 128)
    assert zipf.probability.sum(axis=1) == pytest.approx(8)
