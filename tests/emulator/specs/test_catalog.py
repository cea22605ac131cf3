from collections.abc import Callable

import pytest

from emulator.errors import ConfigError
from emulator.specs.chips import CHIPS, chip_by_name
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.systems import SYSTEMS, system_by_name


def test_every_entry_is_found_by_its_own_name() -> None:
    assert {name: chip.name for name, chip in CHIPS.items()} == {"trainium3": "trainium3"}
    assert all(system_by_name(name).name == name for name in SYSTEMS)
    assert all(model_by_name(name).name == name for name in MODELS)
    assert all(chip_by_name(name) is chip for name, chip in CHIPS.items())


@pytest.mark.parametrize(
    ("find", "known"),
    [
        (chip_by_name, "trainium3"),
        (system_by_name, "trn3-nl72x2"),
        (model_by_name, "qwen3-30b-a3b"),
    ],
)
def test_an_unknown_name_is_refused_with_the_names(
    find: Callable[[str], object], known: str
) -> None:
    with pytest.raises(ConfigError, match=f"=nothing: expected one of .*{known}"):
        find("nothing")
