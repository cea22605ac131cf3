"""The file of served models and tenants: what it says, and one line for what it says wrongly."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.analysis.tenants.checkpoint_store import CheckpointStore
from serving.analysis.tenants.claims import WorthUnit
from serving.analysis.tenants.tenants_file import read_tenants_file

EXAMPLE = Path("deploy/tenants/example.toml")
SERVED = '[[serve]]\nmodel = "m"\npeak = 50\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "tenants.toml"
    path.write_text(text)
    return path


def test_the_example_has_models_jobs_and_batch_work() -> None:
    found = read_tenants_file(EXAMPLE)

    assert [each.model for each in found.serve] == ["gpt-oss-120b", "gpt-oss-20b"]
    assert found.worth is WorthUnit.USD
    pretraining, tuning = found.train
    assert pretraining.elastic
    assert pretraining.checkpoint is CheckpointStore.NEIGHBOURS
    assert tuning.tokens == 2e9
    assert found.batch[0].at_hours == (0, 8)


def test_a_model_and_its_peak_are_enough(tmp_path: Path) -> None:
    found = read_tenants_file(written(tmp_path, SERVED))

    assert found.serve[0].policy == "demand"
    assert not found.train
    assert not found.batch
    assert found.worth is WorthUnit.TOKENS


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "serve"),
        ("serve = []", "serve"),
        ('[[serve]]\nmodel = "m"', "peak"),
        ('[[serve]]\nmodel = "m"\npeak = 0', r"serve\[0\].peak|serve\[...\].peak"),
        (SERVED + 'slow = "x"', "slow"),
        (SERVED + '[[train]]\nname = "t"\nmodel = "m"\nweight = "1"', "weight"),
        (SERVED + '[[train]]\nname = "t"\nmodel = "m"\ncheckpoint = "tape"', "checkpoint"),
        (SERVED + '[[batch]]\nname = "b"\nmodel = "m"\nrequests = 5', "deadline_hours"),
        (
            SERVED + '[[batch]]\nname = "b"\nmodel = "m"\nrequests = 5\ndeadline_hours = 1\n'
            "at_hours = []",
            "at_hours",
        ),
        ('worth = "gold"\n' + SERVED, "worth"),
        ("kwh_usd = 0.1\n" + SERVED, "kwh_usd"),
        ("serve", "TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as raised:
        read_tenants_file(written(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_tenants_file(tmp_path / "none.toml")
