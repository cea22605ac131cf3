"""deploy/guides/add-a-chip.md, followed: its made-up chip joins the catalog and is timed."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, chip_by_name
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS, system_by_name
from serving.main import main
from tests.contracts.markdown_pages import pages
from tests.emulator.specs import test_catalog

GUIDE = pages()["deploy/guides/add-a-chip.md"]


@pytest.fixture
def catalogued(monkeypatch: pytest.MonkeyPatch) -> tuple[ChipSpec, SystemSpec]:
    """The guide's file, run, and its two names in the lists, as the guide says."""
    (source,) = GUIDE.blocks("python")
    names: dict[str, object] = {}
    exec(compile(source, "example1.py", "exec"), names)
    chip, system = names["EXAMPLE1"], names["EXAMPLE1_8"]
    assert isinstance(chip, ChipSpec)
    assert isinstance(system, SystemSpec)
    monkeypatch.setitem(CHIPS, chip.name, chip)
    monkeypatch.setitem(SYSTEMS, system.name, system)
    for name, spec in ((chip.name, chip), (system.name, system)):
        monkeypatch.setitem(test_catalog.SPECS, name, spec)
    return chip, system


def test_the_table_of_fields_is_that_of_the_shape() -> None:
    told = set(re.findall(r"`(\w+)`", GUIDE.text))
    short = {f"tensor_{each}_flops_per_s" for each in ("fp32", "bf16", "fp8", "fp4")}
    left = {"name", "maker", "announced", "switches", "tensor_sparse_flops_per_s"}

    assert {field.name for field in fields(ChipSpec)} - left - short <= told


def test_the_example_keeps_what_the_catalog_s_tests_hold(
    catalogued: tuple[ChipSpec, SystemSpec],
) -> None:
    chip, system = catalogued

    assert chip_by_name("example1") is chip
    assert system_by_name("example1-8") is system
    test_catalog.test_no_two_entries_share_a_name()
    test_catalog.test_a_narrower_format_is_never_slower_on_any_chip(chip.name)
    test_catalog.test_a_system_stands_on_a_chip_of_the_catalog_with_links_for_its_tiers(system.name)
    for name in (chip.name, system.name):
        test_catalog.test_every_figure_has_its_own_name_a_unit_and_a_source(name)


def test_the_example_is_described(
    catalogued: tuple[ChipSpec, SystemSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", "example1-8"]) == 0

    printed = capsys.readouterr().out
    assert "example1-8" in printed
    assert "9.80  TB/s" in printed


def test_faster_memory_serves_a_user_faster_but_not_by_all_of_its_factor(
    catalogued: tuple[ChipSpec, SystemSpec], tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    words = ["pareto", "--model", "gpt-oss-120b", "--systems", "example1-8,trn3-nl72x2"]
    words += ["--chips", "8", "--tp", "1", "--batch", "8", "--precision", "stored"]

    assert main([*words, "--processes", "1", "--json", str(path)]) == 0

    fastest = {
        machine["system"]: max(point["tokens_per_s_per_user"] for point in machine["points"])
        for machine in json.loads(path.read_text())["machines"]
    }
    gain = fastest["example1-8"] / fastest["trn3-nl72x2"]
    memory_gain = catalogued[0].memory_bytes_per_s / chip_by_name("trainium3").memory_bytes_per_s
    assert 1.05 < gain < memory_gain  # a step is not made of memory alone
