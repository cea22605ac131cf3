"""Errors of serving that reach a user: one line, and what to do."""

from emulator.errors import UltraServeError


class UnsupportedFlag(UltraServeError):
    """A vLLM flag or feature that this platform refuses; definite, nothing was started."""

    def __init__(self, *, flag: str, reason: str) -> None:
        super().__init__(f"{flag}: {reason}")
        self.flag = flag


class RefusedByVllm(UltraServeError):
    """vLLM refused its arguments; definite, nothing was started."""

    def __init__(self, words: str) -> None:
        super().__init__(" ".join(words.split()))


class PortInUse(UltraServeError):
    """Another program listens on the server's port."""

    def __init__(self, host: str, port: int, *, field: str = "port") -> None:
        super().__init__(
            f"{field}={port}: expected a free port on {host}, another program listens there"
        )


class ServerFailed(UltraServeError):
    """A server that a command started did not come up."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server did not start: {reason}")


class LeaseRefused(UltraServeError):
    """Chips cannot be lent out, or taken back, now; definite, nothing has changed."""


class TrainingDiverged(UltraServeError):
    """A step's loss is not finite; definite: the newest checkpoint precedes it."""

    def __init__(self, *, step: int, loss: float) -> None:
        super().__init__(
            f"step {step}: the loss is {loss}: a lower --learning-rate, or --precision fp32"
        )
