"""Power and energy of what serves, as the control API shows it."""

from serving.wire.machine_state import Count, Plain


class ChipPower(Plain, frozen=True, kw_only=True):
    """What one chip draws: the mean of the last emulated seconds."""

    chip: Count
    watts: float


class RackPower(Plain, frozen=True, kw_only=True):
    """The partition's chips in one rack, their share of its input and of what it is given."""

    rack: Count
    chips: Count
    chip_watts: float
    it_watts: float
    provisioned_watts: float


class TokensPerMegawatt(Plain, frozen=True, kw_only=True):
    """Tokens per second and megawatt; `basis` is provisioned, drawn or all-in.

    `watts` is what was divided by, `why` where it comes from.
    """

    basis: str
    watts: float
    why: str
    output: float
    input: float
    total: float


class PowerWindow(Plain, frozen=True, kw_only=True):
    """The last emulated seconds.

    Attributes:
        prompt_tokens: that were computed; those from a cache are not among them.
    """

    emulated_s: float
    prompt_tokens: Count
    output_tokens: Count
    facility_joules: float
    tokens_per_megawatt: tuple[TokensPerMegawatt, ...]


class MachinePower(Plain, frozen=True, kw_only=True):
    """Everything about power.

    Attributes:
        chip_watts: of all chips, the mean of the last emulated seconds; `it_watts` is the racks'
            input and `facility_watts` the utility's meter, both with the chips' share of all the
            rest.
            `parts_watts` are the latter by part.
        chip_budget_watts: what a chip may draw; `provisioned_watts` is the chips' share of what the
            racks are given, before cooling.
        pue: facility watts per watt at the racks' input, on the worst day.
        chip_joules, facility_joules: since the engine's start, idle time included.
        window: None until a step has ended.
    """

    emulated_s: float
    chip_watts: float
    it_watts: float
    facility_watts: float
    parts_watts: dict[str, float]
    chip_budget_watts: float
    provisioned_watts: float
    pue: float
    chip_joules: float
    facility_joules: float
    chips: tuple[ChipPower, ...]
    racks: tuple[RackPower, ...]
    window: PowerWindow | None
