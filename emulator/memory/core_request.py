"""The LNC and chips of a process, from flags, the compiled model and the environment.

Logical cores are numbered over the whole system; on the real machine each host numbers its own. An
engine serves on whole chips.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emulator.errors import ConfigError, NeuronError
from emulator.memory.lnc import core_map
from emulator.memory.neuron_environment import (
    LOGICAL_NC_CONFIG,
    NRT_INVALID,
    NRT_LOAD_NOT_ENOUGH_NC,
    VIRTUAL_CORE_SIZE,
    NeuronEnvironment,
    as_ranges,
)
from emulator.specs.system import SystemSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRequest:
    """The LNC and chips of a serving process; `exclusive`: it named its cores, so no other may."""

    lnc: int
    first_chip: int
    chips: int
    exclusive: bool


def resolve_cores(
    environment: NeuronEnvironment,
    *,
    lnc_flag: int | None,
    chips_flag: int | None,
    compiled_lnc: int | None,
    default_chips: int,
    system: SystemSpec,
) -> CoreRequest:
    """Combine the environment, the flags `--lnc` and `--chips`, and the model's `compiled_lnc`.

    By default the chip's LNC, and `default_chips` chips. Raises NeuronError for an LNC that the
    chip lacks (NCC_EARG001), conflicting LNCs (NRT_INVALID), or too many cores
    (NRT_LOAD_NOT_ENOUGH_NC); ConfigError for cores that are no whole chips, or conflict with the
    flag.
    """
    lnc = _lnc(environment, lnc_flag=lnc_flag, compiled_lnc=compiled_lnc, system=system)
    per_chip = len(core_map(system.chip, lnc).cores)
    available = system.chips.count * per_chip
    if environment.logical_cores is None:
        return CoreRequest(
            lnc=lnc,
            first_chip=0,
            chips=default_chips if chips_flag is None else chips_flag,
            exclusive=False,
        )
    first = environment.first_logical_core or 0
    cores = range(first, first + environment.logical_cores)
    name, text = environment.cores_variable, _as_written(environment, cores)
    if cores.stop > available:
        raise NeuronError(
            code=NRT_LOAD_NOT_ENOUGH_NC,
            field=name,
            value=text,
            expected=f"at most the {available} logical cores of {system.name} at LNC={lnc}, "
            f"0-{available - 1}",
        )
    if first % per_chip or len(cores) % per_chip:
        raise ConfigError(name, text, _whole_chips(environment, cores, per_chip, lnc))
    chips = len(cores) // per_chip
    if chips_flag is not None and chips_flag != chips:
        raise ConfigError(
            "chips",
            chips_flag,
            f"{chips}, the chips of {name}={text} at LNC={lnc}, or one of the two",
        )
    return CoreRequest(
        lnc=lnc,
        first_chip=first // per_chip,
        chips=chips,
        exclusive=environment.visible is not None,
    )


def compiled_lnc(neuron_config: Mapping[str, Any]) -> int | None:
    """The LNC in a compiled model's neuron_config.json; None without one.

    At the top, or under "neuron_config" as the vendor's inference library writes it. Raises
    ConfigError for a value that is no whole number.
    """
    inner = neuron_config.get("neuron_config")
    settings = {**neuron_config, **(inner if isinstance(inner, Mapping) else {})}
    lnc = settings.get("logical_nc_config")
    if lnc is not None and type(lnc) is not int:
        raise ConfigError("logical_nc_config", lnc, "a whole number")
    return lnc


def _lnc(
    environment: NeuronEnvironment,
    *,
    lnc_flag: int | None,
    compiled_lnc: int | None,
    system: SystemSpec,
) -> int:
    """The one LNC of all sources; raises NeuronError when they differ."""
    named = [
        (f"{LOGICAL_NC_CONFIG} or {VIRTUAL_CORE_SIZE}", environment.lnc),
        ("--lnc", lnc_flag),
        ("the compiled model's logical_nc_config", compiled_lnc),
    ]
    given = [(name, lnc) for name, lnc in named if lnc is not None]
    if not given:
        return system.chip.default_lnc.count
    name, lnc = given[0]
    for other_name, other in given[1:]:
        if other != lnc:
            raise NeuronError(
                code=NRT_INVALID,
                field="lnc",
                value=lnc,
                expected=f"{other}: {other_name} says {other}, {name} says {lnc}",
            )
    return lnc


def _as_written(environment: NeuronEnvironment, cores: range) -> str:
    return str(len(cores)) if environment.visible is None else as_ranges(cores)


def _whole_chips(environment: NeuronEnvironment, cores: range, per_chip: int, lnc: int) -> str:
    """Whole chips (`per_chip` logical cores each) inside the given cores, and around them."""
    inner = range(-(-cores.start // per_chip) * per_chip, cores.stop // per_chip * per_chip)
    outer = range(cores.start // per_chip * per_chip, -(-cores.stop // per_chip) * per_chip)
    fitting = dict.fromkeys(_as_written(environment, each) for each in (inner, outer) if each)
    return f"whole chips of {per_chip} logical cores at LNC={lnc}: {' or '.join(fitting)} would fit"
