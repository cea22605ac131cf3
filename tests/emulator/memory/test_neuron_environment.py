import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import NeuronError
from emulator.memory.neuron_environment import (
    NeuronEnvironment,
    as_ranges,
    visible_cores,
)

LNC = "NEURON_LOGICAL_NC_CONFIG"
VIRTUAL = "NEURON_RT_VIRTUAL_CORE_SIZE"
COUNT = "NEURON_RT_NUM_CORES"
VISIBLE = "NEURON_RT_VISIBLE_CORES"


def test_an_environment_without_the_variables_says_nothing() -> None:
    assert NeuronEnvironment.read({"PATH": "/bin", LNC: "", VISIBLE: " "}) == NeuronEnvironment()


@pytest.mark.parametrize(
    "variables", [{LNC: "1"}, {VIRTUAL: "1"}, {LNC: "1", VIRTUAL: "1"}, {LNC: " 1 "}]
)
def test_either_lnc_variable_sets_lnc(variables: dict[str, str]) -> None:
    assert NeuronEnvironment.read(variables) == NeuronEnvironment(lnc=1)


def test_lnc_variables_that_disagree_are_refused_by_both_names() -> None:
    with pytest.raises(NeuronError, match=rf"^NRT_INVALID \(2\): {LNC}=1: .*{VIRTUAL}=2"):
        NeuronEnvironment.read({LNC: "1", VIRTUAL: "2"})


def test_a_number_of_cores_says_how_many_and_0_means_all() -> None:
    assert NeuronEnvironment.read({COUNT: "8"}) == NeuronEnvironment(logical_cores=8)
    assert NeuronEnvironment.read({COUNT: "8"}).cores_variable == COUNT
    assert NeuronEnvironment.read({COUNT: "0"}) == NeuronEnvironment()


def test_visible_cores_win_over_a_number_of_cores() -> None:
    environment = NeuronEnvironment.read({COUNT: "8", VISIBLE: "3-5,6"})

    assert environment == NeuronEnvironment(first_logical_core=3, logical_cores=4)
    assert environment.visible == range(3, 7)
    assert environment.cores_variable == VISIBLE


@pytest.mark.parametrize("name", [LNC, VIRTUAL, COUNT])
@pytest.mark.parametrize("text", ["two", "-1", "1.5", "1-2", "²"])
def test_a_value_that_is_no_whole_number_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(NeuronError, match=rf"^NRT_INVALID \(2\): {name}={text}: expected a whole"):
        NeuronEnvironment.read({name: text})


def test_an_lnc_of_0_is_no_lnc() -> None:
    with pytest.raises(NeuronError, match=rf"{LNC}=0: expected a whole number of at least 1"):
        NeuronEnvironment.read({LNC: "0"})


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0", range(1)), ("3-5,6", range(3, 7)), ("4-4", range(4, 5)), ("0, 1, 2-3", range(4))],
)
def test_cores_and_ranges_are_read(text: str, cores: range) -> None:
    assert visible_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a", "core numbers and ranges"),
        ("1,", "core numbers and ranges"),
        ("-3", "core numbers and ranges"),
        ("1--2", "core numbers and ranges"),
        ("5-3", "ascending ranges, not 5-3"),
        ("3-5,5", "each core once, ascending; 5 comes twice"),
        ("4-7,0-3", "each core once, ascending"),
        ("0-1,4", "without a gap; 2 is missing"),
    ],
)
def test_cores_that_are_not_ascending_without_gap_or_overlap_are_refused(
    text: str, complaint: str
) -> None:
    with pytest.raises(NeuronError, match=rf"^NRT_INVALID \(2\): {VISIBLE}=.*{complaint}"):
        visible_cores(text)


@given(first=st.integers(0, 1_200), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_any_way_to_write_a_run_of_cores_reads_as_that_run(first: int, cuts: list[int]) -> None:
    parts, start = [], first
    for length in cuts:
        parts.append(as_ranges(range(start, start + length)))
        start += length

    assert visible_cores(",".join(parts)) == range(first, start)
