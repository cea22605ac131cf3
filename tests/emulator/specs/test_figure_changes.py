import contextlib
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.assumptions import accepts, machine_named, with_assumptions
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.chips import CHIPS
from emulator.specs.figure import Figure
from emulator.specs.figure_changes import ALIASES, LAYOUT, with_changes
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.ultraserver.step_cost import StepCostModel


def changed(*texts: str) -> SystemSpec:
    return with_assumptions(TRN3_NL72X2, texts)


def step_ns(system: SystemSpec) -> float:
    """A decoding step with a prompt's part, on two chips."""
    partition = Partition(chips=2, tp=2, ep=2, lnc=system.chip.default_lnc.count)
    costs = StepCostModel(system, model_by_name("gpt-oss-20b"), partition, calibration=ROOFLINE)
    new, context = np.array([1] * 8 + [256]), np.array([900] * 8 + [256])
    batch = StepBatch(
        ranks=1,
        rank=np.zeros(9, np.int64),
        new_tokens=new,
        context_tokens=context,
        logit_rows=np.array([9]),
    )
    return costs.cost(batch).duration_ns


def test_a_changed_figure_has_its_value_in_words_and_the_catalogs_own() -> None:
    system = changed("hbm_bandwidth=2x", "switch_hop=230ns", "hbm_bytes=288GiB", "pue=-10%")

    chip = system.chip
    assert chip.hbm_bytes_per_s.value == 2 * 4.9e12
    assert chip.dma_bytes_per_s.value == 2 * 4.224e12
    assert chip.memory_bytes_per_s == 2 * TRAINIUM3.memory_bytes_per_s
    assert chip.hbm_bytes == 288 * 2**30
    assert (system.hop_ns.value, system.pue.value) == (230, 1.35)
    assert system.hop_ns.source == f"set: 230ns instead of 1000 ns ({TRN3_NL72X2.hop_ns.source})"
    assert chip.hbm_bytes_per_s.source.startswith("set: 2x of 4.9e+12 bytes/s (AWS Neuron SDK")
    assert not system.hop_ns.assumed


def test_what_derives_from_a_changed_figure_follows_and_provisioned_power_stays() -> None:
    totals = dict(changed("hbm_bytes_per_s=2x", "budget_watts=900W").figures())

    assert totals["total_hbm_bytes_per_s"].value == 2 * 144 * 4.9e12
    assert totals["provisioned_watts"].value == 163_339
    assert totals["overhead_watts_per_chip"].value == pytest.approx(163_339 / 144 - 900)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.23us", 230),
        ("0.23 \u00b5s", 230),
        ("2.3e-7s", 230),
        ("230", 230),
        ("0.5x", 500),
        ("+10%", 1100),
        ("-12.5%", 875),
        (".5x", 500),
    ],
)
def test_a_value_is_relative_or_has_the_figures_unit(text: str, value: float) -> None:
    assert changed(f"hop_ns={text}").hop_ns.value == value


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("hbm_bytes_per_s=9.8TB/s", "hbm_bytes_per_s", 9.8e12),
        ("hbm_bytes_per_s=1TiB/s", "hbm_bytes_per_s", 2.0**40),
        ("idle_watts=0.1kW", "idle_watts", 100),
        ("fp8_flops=5PFLOPS", "tensor_fp8_flops_per_s", 5e15),
        ("tensor_fp8_flops_per_s=5PFLOP/s", "tensor_fp8_flops_per_s", 5e15),
        ("scalar_ops_per_s=2Top/s", "scalar_ops_per_s", 2e12),
        ("hbm_stack_bytes=0.3x", "hbm_stack_bytes", round(0.3 * 36 * 2**30)),
        ("tray_hops=2hops", "tray_hops", 2),
        ("winter_overhead=0.5", "winter_overhead", 0.5),
        ("ramp_ns=0", "ramp_ns", 0),
        ("tile_rows=2x", "tile_rows", 256),
    ],
)
def test_figures_of_the_chip_its_matrix_engine_the_system_and_its_power_change(
    text: str, name: str, value: float
) -> None:
    assert dict(changed(text).own_figures())[name].value == value


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("hbm_bandwith=2x",), r"assumption=hbm_bandwith: .*; did you mean hbm_bandwidth\?"),
        (("budget_wats=2x",), r"did you mean budget_watts\?"),
        (("hop_ns=2y",), "hop_ns=2y: expected 2x, .* a number of ns, as 230ns or 0.23us"),
        (("hop_ns=230NS",), "hop_ns=230NS: expected"),
        (("hop_ns=-5",), "hop_ns=-5: expected"),
        (("hop_ns=10%",), "hop_ns=10%: expected"),
        (("hbm_bandwidth=9.8W",), "hbm_bandwidth=9.8W: .* a number of bytes/s, as 9.8TB/s"),
        (("hop_ns=1e9x",), "hop_ns=1e9x: expected at most a million times the catalog's 1000"),
        (("hop_ns=2x", "switch_hop=3x"), "switch_hop=3x: expected one value of hop_ns"),
        (("chips=288",), "chips=288: expected 144 chips, by which everything has its place"),
        (("hbm_stacks=2x",), "hbm_stacks=2x: expected 4 stacks"),
        (("cores=16",), "cores=16: expected 8 cores"),
        (("backplane_hops=0.5x",), "backplane_hops=0.5x: expected a whole number of hops, now 3"),
        (("total_hbm_bytes=2x",), "total_hbm_bytes=2x: .* derives from: arithmetic: 144 x"),
        (("launch_ns=0",), "trainium3.launch_ns=0.0: expected > 0"),
        (("budget_watts=2x",), "provisioned_watts=163339: expected at least the chips' own"),
        (("idle_watts=2kW",), "idle_watts=2000.0: expected at most budget_watts, 1000"),
        (("pue=0.9",), "trn3-nl72x2.pue=0.9: expected >= 1"),
        (("ramp_share=3x",), "ramp_share=1.5: expected above 0, at most 1"),
        (("peak_overhead=0.5",), "season_overhead=0.5: expected 1 at the peak"),
    ],
)
def test_an_impossible_change_is_one_line_that_names_what_is_right(
    texts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        changed(*texts)

    assert "\n" not in str(error.value)


def test_a_figure_that_a_chip_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="a figure of h100, which has no tensor_fp4_flops_per_s"):
        with_changes(CHIPS["h100"], [("fp4_flops", "2x")])
    assert not accepts(SYSTEMS["dgx-h100"], "fp4_flops=2x")
    assert accepts(SYSTEMS["dgx-h100"], "link_bandwidth=2x")


def test_figures_change_together_so_that_their_order_does_not_matter() -> None:
    texts = ("budget_watts=2x", "provisioned_watts=2x", "hbm=nki", "hbm_bytes_per_s=2x")

    assert changed(*texts) == changed(*reversed(texts))
    assert changed(*texts).chip.hbm_bytes_per_s.value == 2 * 4.7e12


def test_a_switch_is_known_beside_a_change_of_its_figures_and_does_not_undo_it() -> None:
    system = changed("links=tenth", "link_tray_bytes_per_s=1TB/s", "hbm=nki", "hbm_bandwidth=2x")

    assert system.turned_switches() == (
        *("links=tenth", "hbm=nki"),
        *("hbm_bytes_per_s=2x", "dma_bytes_per_s=2x", "link_tray_bytes_per_s=1TB/s"),
    )
    assert with_assumptions(TRN3_NL72X2, system.turned_switches()) == system
    back = system.assuming("links", "aws_text")
    assert back.chip.link_tray_bytes_per_s.value == 1e12
    assert (
        back.chip.link_backplane_bytes_per_s
        == changed("links=aws_text").chip.link_backplane_bytes_per_s
    )


@pytest.mark.long
@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9.]{1,5}(e-?[0-9]{1,3})?[a-zA-Z%/]{0,5}"))
def test_any_text_is_a_value_or_one_line(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert changed(f"hop_ns={text}").hop_ns.is_set


@given(st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000))
def test_a_factor_and_its_per_cent_and_its_value_agree(factor: Fraction) -> None:
    times = float(factor)
    by_factor, by_percent, by_value = (
        changed(f"hbm_bytes_per_s={text}").chip.hbm_bytes_per_s.value
        for text in (f"{times!r}x", f"{100 * (times - 1):+.17f}%", f"{4.9 * times!r}TB/s")
    )

    assert by_factor == pytest.approx(by_percent)
    assert by_factor == pytest.approx(by_value)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_every_figure_of_every_system_can_be_set_to_its_own_value(system: SystemSpec) -> None:
    values = [(name, figure.value) for name, figure in system.own_figures()]
    for name, _ in values:
        after = with_assumptions(system, [f"{name}=1x"])
        assert [(each, figure.value) for each, figure in after.own_figures()] == values
        assert after.turned_switches() == (f"{name}=1x",)


@pytest.mark.parametrize("name", SYSTEMS)
def test_figures_set_to_their_own_values_change_no_steps_cost(name: str) -> None:
    system = SYSTEMS[name]
    same = with_assumptions(system, [f"{figure}=1x" for figure, _ in system.own_figures()])

    assert step_ns(same) == step_ns(system)


def test_twice_the_bandwidth_shortens_a_step_and_half_of_it_lengthens_it() -> None:
    assert step_ns(changed("hbm_bandwidth=2x")) < 0.9 * step_ns(TRN3_NL72X2)
    assert step_ns(changed("hbm_bandwidth=0.5x")) > 1.1 * step_ns(TRN3_NL72X2)
    assert step_ns(changed("hbm_bytes_per_s=2x")) == step_ns(TRN3_NL72X2)  # the DMAs bound it


def test_a_machine_with_figures_of_its_own_has_them_in_its_name() -> None:
    system = machine_named(TRN3_NL72X2, ["pue=1.2"], ["hop_ns=230ns"])

    assert system.name == "trn3-nl72x2:hop_ns=230ns"
    assert system.turned_switches() == ("hop_ns=230ns", "pue=1.2")
    assert machine_named(TRN3_NL72X2, [], []) is TRN3_NL72X2


def test_a_cluster_keeps_what_was_set() -> None:
    cluster = changed("provisioned_watts=+10%").cluster(2)

    assert cluster.provisioned_watts.value == pytest.approx(2 * 1.1 * 163_339)
    assert cluster.turned_switches() == ("provisioned_watts=+10%",)


def test_aliases_and_the_layout_name_figures_of_the_catalog() -> None:
    known = {name for system in SYSTEMS.values() for name, _ in system.own_figures()}

    assert {each for alias in ALIASES.values() for each in alias.figures} <= known
    assert {alias.parts for alias in ALIASES.values()} <= known | {""}
    assert set(LAYOUT) <= known
    switches = {each.name for system in SYSTEMS.values() for each in system.assumption_sets}
    assert not switches & (known | ALIASES.keys())


def test_a_figure_comes_from_the_catalogs_also_when_it_was_set() -> None:
    own = Figure(1, "W", "a page")
    other = replace(own, value=2)

    assert own.comes_from(own)
    assert not other.comes_from(own)
    assert Figure(3, "W", f"set: 3x of {own.words}").comes_from(own)
    assert not Figure(3, "W", f"set: 3x of {own.words}").comes_from(other)
