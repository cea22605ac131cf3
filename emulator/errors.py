"""The emulator's typed errors: caught by kind, shown as one line.

Every message names the cause. Only `HbmExhausted` has several lines: the usage table.
"""


class UltraServeError(Exception):
    """A refusal or failure of UltraServe, for its user; a command exits with `exit_code`."""

    exit_code: int = 2


class ConfigError(UltraServeError):
    """A setting with an unusable value; one line that names setting, value and expectation."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}={value}: expected {expected}".replace("\n", " "))
        self.field = field
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), vars(self))


class NeuronError(ConfigError):
    """A setting that the Neuron compiler or runtime would refuse; `code` is its status.

    The message is one line: the code, then as in any `ConfigError`.
    """

    def __init__(self, *, code: str, field: str, value: object, expected: str) -> None:
        super().__init__(field, value, expected)
        self.args = (f"{code}: {self.args[0]}",)
        self.code = code


class CheckpointError(UltraServeError):
    """An unusable checkpoint; the message is one line that names the file or the tensor."""

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\n", " "))


class HbmExhausted(UltraServeError):
    """A failed HBM allocation; definite: nothing was allocated.

    `owner` requested `wanted_bytes` of `free_bytes`; `table` lists the other owners, as the Neuron
    runtime's own out-of-memory report does; `hint`, if any, is a last line with a fitting size.
    """

    def __init__(
        self, *, owner: str, wanted_bytes: int, free_bytes: int, table: str, hint: str = ""
    ) -> None:
        first = f"HBM exhausted: {owner} wants {wanted_bytes:,} bytes, {free_bytes:,} are free"
        super().__init__("\n".join(part for part in (first, table, hint) if part))
        self.owner = owner
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.table = table
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), vars(self))


class WorkersLost(UltraServeError):
    """Processes that computed for this one are gone, and their results with them."""


class ChannelError(UltraServeError):
    """Step data did not arrive between the executor and a chip; indefinite: it may have run."""


class ChipLost(ChannelError):
    """The connections to `chips` are gone for good."""

    def __init__(self, chips: tuple[int, ...], reason: str = "the channel is closed") -> None:
        super().__init__(f"{chip_names(chips)} lost: {reason}")
        self.chips = chips
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), vars(self))


class ChipSilent(ChannelError):
    """`chips` did not answer in time, and may yet: `forget` them before the next command."""

    def __init__(self, chips: tuple[int, ...], silent_s: float) -> None:
        super().__init__(f"{chip_names(chips)} silent for {silent_s:g} s")
        self.chips = chips
        self.silent_s = silent_s

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), vars(self))


def chip_names(chips: tuple[int, ...]) -> str:
    """`chips` as in messages: "chip 3", "chips 1, 2"."""
    return f"chip{'s' if len(chips) > 1 else ''} {', '.join(map(str, chips))}"


def _rebuild(kind: type[UltraServeError], fields: dict[str, object]) -> UltraServeError:
    """Rebuild an error from its fields after pickling, as Ray does between actors."""
    return kind(**fields)
