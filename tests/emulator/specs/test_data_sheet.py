import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.data_sheets import MI455X, TPU_V7, TRAINIUM4
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import Figure


def test_trainium4_is_what_the_keynote_says_beside_trainium3_and_nothing_more() -> None:
    known = dict(TRAINIUM4.figures())

    assert known["hbm_bytes"].value == 2 * TRAINIUM3.hbm_bytes
    assert known["hbm_bytes_per_s"].value == pytest.approx(4 * TRAINIUM3.hbm_bytes_per_s.value)
    fp4 = TRAINIUM3.assuming("tensor", "spec").tensor_flops_per_s("fp4")
    assert known["tensor_fp4_flops_per_s"].value == 6 * fp4
    assert {"cores", "budget_watts", "link_tray_bytes_per_s"} < set(TRAINIUM4.unknown)


def test_a_status_says_announced_only_of_what_is_not_delivered() -> None:
    assert MI455X.status.startswith("announced, cannot be timed: cores")
    assert TPU_V7.status.startswith("cannot be timed: tensor_fp32_flops_per_s")


def test_a_sheet_that_knows_all_or_contradicts_itself_is_refused() -> None:
    watts = Figure(value=1, unit="W", source="a test")
    with pytest.raises(ConfigError, match="unknown figures"):
        DataSheet(name="a", maker="b", known=(("idle_watts", watts),), unknown=())
    with pytest.raises(ConfigError, match=r"a\.unknown=\['idle_watts'\]"):
        DataSheet(name="a", maker="b", known=(("idle_watts", watts),), unknown=("idle_watts",))
