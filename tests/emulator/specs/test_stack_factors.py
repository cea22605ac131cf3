import pytest

from emulator.errors import ConfigError
from emulator.specs.stack_factors import GenerationFactors, StackFactors

FACTORS = StackFactors(
    name="fit",
    source="a test",
    memory_share=0.8,
    tensor_share=0.5,
    link_share=0.4,
    layer_ns=10_000.0,
    request_ns=3_000.0,
    collective_ns=2_000.0,
    front_end_request_ns=1e8,
    fp4_overhead=0.5,
    draft_overhead=1.5,
    exchange_skew=3.0,
    generations={
        "hopper": GenerationFactors(compute=0.5, overhead=2.0),
        "cdna4": GenerationFactors(compute=4.0),
    },
)

LARGER = "in whose domains of 72 chips nothing was measured"


def test_a_generation_multiplies_its_chips_factors_by_hand() -> None:
    made = FACTORS.calibration("h200")

    assert FACTORS.calibration("h100") == made
    assert made.memory_share.value == 0.8
    assert made.tensor_share.value == 0.25
    assert made.link_share.value == 0.4
    assert made.layer_ns.value == 20_000
    assert made.step_ns.value == 1e6
    assert made.front_end_request_ns.value == 1e8


def test_no_share_exceeds_what_a_stack_can_reach() -> None:
    assert FACTORS.calibration("mi355x").tensor_share.value == 0.95  # 0.5 x 4, capped


def test_narrow_experts_and_drafts_change_the_engines_overheads_alone_and_once() -> None:
    wide = FACTORS.calibration("h200")

    narrow = wide.of_work(fp4=True, drafts=False)

    assert narrow.collective_ns.value == wide.collective_ns.value / 2
    assert narrow.tensor_share == wide.tensor_share
    assert narrow.exchange_ns == wide.exchange_ns
    assert wide.of_work(fp4=True, drafts=True).request_ns.value == 6_000 * 0.5 * 1.5
    assert narrow.of_work(fp4=True, drafts=True) == narrow
    assert wide.of_work(fp4=False, drafts=False).layer_ns == wide.layer_ns


def test_cores_store_inside_a_domain_where_no_dma_engines_move_rows() -> None:
    gpu, trainium = (FACTORS.calibration(chip) for chip in ("h200", "trainium3"))
    assert gpu.store_share is not None
    assert gpu.store_ns is not None

    inside = gpu.inside_a_domain()

    assert (inside.exchange_share, inside.exchange_ns) == (gpu.store_share, gpu.store_ns)
    assert gpu.stores_slower == gpu.exchange_share.value / gpu.store_share.value
    assert inside.stores_slower == trainium.stores_slower == 1
    assert trainium.inside_a_domain() == trainium
    assert "assumed" in trainium.exchange_share.source
    assert "assumed" not in gpu.exchange_share.source


def test_what_stores_take_in_domains_larger_than_the_fits_is_assumed() -> None:
    box, rack = (FACTORS.calibration(chip).store_share for chip in ("b200", "gb200"))
    assert box is not None
    assert rack is not None

    assert rack.source == f"assumed to hold on gb200, {LARGER}; {box.source}"
    assert "assumed" not in box.source


def test_a_jobs_exchanges_are_those_of_its_collectives_inside_a_domain_too() -> None:
    made = FACTORS.calibration("h200").in_training()

    assert made.inside_a_domain().exchange_share == made.link_share


def test_what_was_never_fitted_has_the_shared_factors_alone() -> None:
    made = FACTORS.calibration("trainium3")

    assert made.tensor_share.value == 0.5
    assert made.layer_ns.value == 10_000
    with pytest.raises(ConfigError, match="chip=abacus"):
        FACTORS.calibration("abacus")


def test_every_factor_is_listed_once_with_its_source() -> None:
    names = [name for name, _ in FACTORS.figures()]

    assert len(names) == len(set(names))
    assert {"memory_share", "draft_overhead", "hopper compute", "turn_taking"} <= set(names)
    assert all(figure.source for _, figure in FACTORS.figures())
