"""What a user is promised: how soon a reply begins, how fast it goes on, and for how many."""

from dataclasses import dataclass

from emulator.errors import ConfigError

_INF = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """At least `share` of the requests have TTFT <= `ttft_s` and TPOT <= `tpot_s`, both at once.

    TTFT is from arrival to the first token; TPOT the time from the first token to the last over the
    tokens after the first, and none for a reply of one token, which meets any. An infinite time
    promises nothing. A level with one finite time and share 0.99 says that its p99 is at most that.

    Raises ConfigError for a time that is not above 0 and a share outside ]0, 1].
    """

    ttft_s: float = _INF
    tpot_s: float = _INF
    share: float = 0.99

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(field=name, value=getattr(self, name), expected="above 0 s")
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(field="share", value=self.share, expected="above 0, at most 1")
