import pytest

from emulator.errors import ConfigError, NeuronError
from emulator.memory.core_request import CoreRequest, compiled_lnc, resolve_cores
from emulator.memory.neuron_environment import NeuronEnvironment
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2


def resolved(
    variables: dict[str, str] | None = None,
    *,
    lnc: int | None = None,
    chips: int | None = None,
    compiled: int | None = None,
) -> CoreRequest:
    return resolve_cores(
        NeuronEnvironment.read(variables or {}),
        lnc_flag=lnc,
        chips_flag=chips,
        compiled_lnc=compiled,
        default_chips=4,
        system=TRN3_NL72X2,
    )


def visible(cores: str, **more: str) -> dict[str, str]:
    return {"NEURON_RT_VISIBLE_CORES": cores, **more}


def test_where_nobody_says_anything_the_defaults_hold() -> None:
    assert resolved() == CoreRequest(lnc=2, first_chip=0, chips=4, exclusive=False)


def test_flags_are_taken_as_they_are() -> None:
    assert resolved(lnc=8, chips=144) == CoreRequest(
        lnc=8, first_chip=0, chips=144, exclusive=False
    )


@pytest.mark.parametrize(("lnc", "first_chip", "chips"), [("1", 1, 2), ("2", 2, 4), ("8", 8, 16)])
def test_visible_cores_are_logical_so_lnc_says_which_chips_they_are(
    lnc: str, first_chip: int, chips: int
) -> None:
    request = resolved(visible("8-23", NEURON_LOGICAL_NC_CONFIG=lnc))

    assert request == CoreRequest(lnc=int(lnc), first_chip=first_chip, chips=chips, exclusive=True)


def test_a_number_of_cores_takes_the_first_chips_and_excludes_nobody() -> None:
    request = resolved({"NEURON_RT_NUM_CORES": "8"})

    assert request == CoreRequest(lnc=2, first_chip=0, chips=2, exclusive=False)


@pytest.mark.parametrize(
    ("variables", "lnc", "compiled", "message"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 2, None, r"--lnc says 2, NEURON_.* says 1"),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, None, 2, r"compiled model's .* says 2, .* says 1"),
        ({}, 1, 2, r"compiled model's logical_nc_config says 2, --lnc says 1"),
    ],
)
def test_an_lnc_that_two_disagree_on_is_refused_by_both(
    variables: dict[str, str], lnc: int | None, compiled: int | None, message: str
) -> None:
    with pytest.raises(NeuronError, match=rf"^NRT_INVALID \(2\): lnc=1: expected 2: .*{message}"):
        resolved(variables, lnc=lnc, compiled=compiled)


def test_an_lnc_that_all_agree_on_is_taken() -> None:
    request = resolved({"NEURON_LOGICAL_NC_CONFIG": "1"}, lnc=1, compiled=1)

    assert request.lnc == 1
    assert resolved(compiled=8).lnc == 8


def test_an_lnc_that_the_chip_has_not_is_refused_as_the_compiler_does() -> None:
    with pytest.raises(NeuronError, match=r"^NCC_EARG001: lnc=4: "):
        resolved(lnc=4)


@pytest.mark.parametrize("variables", [visible("572-579"), {"NEURON_RT_NUM_CORES": "580"}])
def test_more_cores_than_there_are_is_refused_as_the_runtime_does(
    variables: dict[str, str],
) -> None:
    with pytest.raises(
        NeuronError, match=r"^NRT_LOAD_NOT_ENOUGH_NC \(9\): .*576 logical cores.* at LNC=2, 0-575"
    ):
        resolved(variables)


def test_the_last_core_there_is_may_be_used() -> None:
    assert resolved(visible("0-575")).chips == 144
    assert resolved(visible("572-575")).first_chip == 143


@pytest.mark.parametrize(
    ("variables", "fitting"),
    [
        (visible("2-9"), "4-7 or 0-11 would fit"),
        (visible("5"), "4-7 would fit"),
        (visible("0-5"), "0-3 or 0-7 would fit"),
        ({"NEURON_RT_NUM_CORES": "6"}, "4 or 8 would fit"),
    ],
)
def test_cores_that_are_no_whole_chips_are_refused_with_what_would_fit(
    variables: dict[str, str], fitting: str
) -> None:
    with pytest.raises(ConfigError, match=f"whole chips of 4 logical cores at LNC=2: {fitting}$"):
        resolved(variables)


def test_cores_and_a_chips_flag_must_agree() -> None:
    assert resolved(visible("4-11"), chips=2).chips == 2
    with pytest.raises(ConfigError, match=r"^chips=3: expected 2, the chips of NEURON.*=4-11 at"):
        resolved(visible("4-11"), chips=3)


@pytest.mark.parametrize(
    ("config", "lnc"),
    [
        ({}, None),
        ({"logical_nc_config": 1}, 1),
        ({"neuron_config": {"logical_nc_config": 2, "tp_degree": 64}}, 2),
        ({"neuron_config": None}, None),
    ],
)
def test_a_compiled_model_names_its_lnc_or_none(config: dict[str, object], lnc: int | None) -> None:
    assert compiled_lnc(config) == lnc


@pytest.mark.parametrize("lnc", ["2", 2.0, True, [2]])
def test_a_compiled_lnc_that_is_no_whole_number_is_refused_by_name(lnc: object) -> None:
    with pytest.raises(ConfigError, match=r"^logical_nc_config="):
        compiled_lnc({"logical_nc_config": lnc})
