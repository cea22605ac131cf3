"""Day and night settings, read from flags once and passed to the server's process as JSON.

vLLM starts that process without arguments of ours, so they travel in the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from serving.policy.day_night.policy_text import parse_policy
from serving.server.day_night.day_clock import DayClock

ENVIRONMENT: Final = "ULTRASERVE_DAY_NIGHT"
MANUAL: Final = "manual"
"""The policy under which only control calls move groups."""

IF_BETTER: Final = "if-better"
PUBLISH: Final = ("never", IF_BETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The training job's model, data and chips.

    Attributes:
        directory: the job's; it outlives the server.
        weights_dir: initial weights of the server and of the first night.
        corpus_dir, learning_rate: None for the job's default.
        system, model: set the job's time, HBM and energy; None times the weights themselves.
        first_chip: the partition's first chip in the system.
        ray_address: a running Ray cluster; None for the job's own.
    """

    directory: Path
    weights_dir: Path
    corpus_dir: Path | None
    learning_rate: float | None
    system: str
    model: str | None
    first_chip: int
    ray_address: str | None

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            _above_0("learning_rate", self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayNightSettings:
    """How chips change hands.

    Attributes:
        policy: see `parse_policy`, or `manual`.
        day_length_s: emulated seconds.
        day_start: the time of day at the engine's start, see `DayClock.starting`.
        zone: of shown and given times.
        chips: of the partition.
        group_chips: chips that change hands together, whole ranks.
        lend_groups: groups that may train at a time.
        grace_s: emulated seconds for a leaving group's running requests.
        slo: the share of requests that meets its TTFT brings groups back.
        group_requests_per_s: per group and emulated second within the target; None: load is not
            weighed.
        group_requests_source: of that number, for a reader.
        reading_s: emulated seconds of a returning group's weight read, by the cost model, or 0.
        publish: whether a night's weights are served: `never`, or `if-better`.
    """

    policy: str
    day_length_s: float
    day_start: str
    zone: str
    chips: int
    group_chips: int
    lend_groups: int
    grace_s: float
    slo: Slo
    group_requests_per_s: float | None
    group_requests_source: str
    reading_s: float
    publish: str
    training: TrainingSettings

    def __post_init__(self) -> None:
        if self.policy != MANUAL:
            parse_policy(self.policy)
        DayClock.starting(self.day_start, day_length_s=self.day_length_s, zone=self.zone, wall_s=0)
        if not 1 <= self.group_chips <= self.chips // 2:
            expected = f"at least 2 groups on {self.chips} chips: one of them always serves"
            raise ConfigError(field="group_chips", value=self.group_chips, expected=expected)
        if not 1 <= self.lend_groups < self.groups:
            lend, most = self.lend_groups * self.group_chips, self.chips - self.group_chips
            expected = f"{self.group_chips} to {most} chips"
            raise ConfigError(field="lend_chips", value=lend, expected=expected)
        if not 0 <= self.grace_s < float("inf"):
            raise ConfigError(
                field="drain_grace", value=f"{self.grace_s:g}s", expected="at least 0s"
            )
        if self.group_requests_per_s is not None:
            _above_0("group_requests_per_s", self.group_requests_per_s)
        if not 0 <= self.reading_s < float("inf"):
            raise ConfigError(field="reading_s", value=self.reading_s, expected="at least 0")
        if self.publish not in PUBLISH:
            raise ConfigError(field="publish", value=self.publish, expected=" or ".join(PUBLISH))

    @property
    def groups(self) -> int:
        """Groups of the partition; remaining chips always serve."""
        return self.chips // self.group_chips

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {ENVIRONMENT: msgspec.json.encode(self, enc_hook=str).decode()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """The process's settings, or None. Raises ConfigError, or msgspec.ValidationError for JSON
        that `to_environment` never writes.
        """
        text = environment.get(ENVIRONMENT)
        if text is None:
            return None
        return msgspec.json.decode(text, type=cls, dec_hook=_path)


def check_weighs(text: str, group_requests_per_s: float | None) -> None:
    """Raise ConfigError for a policy that needs a group's rate without one."""
    if text == MANUAL or group_requests_per_s is not None:
        return
    if parse_policy(text).weighs_demand:
        expected = (
            "--group-requests-per-s with it, what a group serves, or a target that the cost model "
            "sees kept"
        )
        raise ConfigError(field="policy", value=text, expected=expected)


def _above_0(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(field=name, value=value, expected="a number above 0")


def _path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
