"""Power and energy as the control API shows them; see power.proto."""

from serving.wire.machine_state import Count, Plain


class ChipPower(Plain, frozen=True, kw_only=True):
    """Power of one chip: mean of the last emulated seconds."""

    chip: Count
    watts: float


class RackPower(Plain, frozen=True, kw_only=True):
    """The partition's chips in one rack, with their share of its input and budget."""

    rack: Count
    chips: Count
    chip_watts: float
    it_watts: float
    provisioned_watts: float


class TokensPerMegawatt(Plain, frozen=True, kw_only=True):
    """Tokens per second and megawatt; `basis` is provisioned, drawn or all-in."""

    basis: str
    watts: float
    why: str
    output: float
    input: float
    total: float


class PowerWindow(Plain, frozen=True, kw_only=True):
    """The last emulated seconds."""

    emulated_s: float
    prompt_tokens: Count
    output_tokens: Count
    facility_joules: float
    tokens_per_megawatt: tuple[TokensPerMegawatt, ...]


class MachinePower(Plain, frozen=True, kw_only=True):
    """Everything about power. Watts are means of the last emulated seconds; at the racks' input and
    the utility's meter they include the chips' share of all the rest.
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
