"""An operating point: a partition in steady state at one batch, and its figures.

Where prompts run on the decoding chips (aggregated), steps are costed as scheduled: decodes with
prompt tokens, so that as many requests begin as end.
"""

from dataclasses import dataclass

from emulator.power.efficiency import WATTS_PER_MEGAWATT, PowerBasis, TokenRates
from emulator.units import NS_PER_S
from serving.analysis.steady_state.partitions import PartitionCandidate


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Figures of a whole machine, all replicas together.

    Attributes:
        candidate, prefill: of the decoding chips; of those for prompts, None where they are the
            same.
        overlap, calibration: names of the assumptions on steps.
        batch, users: decoding requests of a rank; of the machine.
        tpot_ns: mean time between a request's tokens, prompts of others included.
        ttft_ns: of a prompt on an idle replica.
        chip_watts: mean over all chips of the machine, idle ones included.
        throttle_factor: lengthening of steps by each chip's budget and even part of its rack's.
        drawn_watts: of the machine at the utility's meter.
        provisioned_watts, all_in_watts: see `PowerBasis`.
    """

    system: str
    model: str
    precision: str
    overlap: str
    calibration: str
    candidate: PartitionCandidate
    prefill: PartitionCandidate | None = None
    batch: int
    users: float
    prompt_tokens: int
    output_tokens: int
    tpot_ns: float
    ttft_ns: float
    requests_per_s: float
    chip_watts: float
    throttle_factor: float
    drawn_watts: float
    provisioned_watts: float
    all_in_watts: float

    @property
    def tokens_per_s_per_user(self) -> float:
        """Interactivity: output tokens per second of a request, once it has begun."""
        return NS_PER_S / self.tpot_ns

    @property
    def output_tokens_per_s(self) -> float:
        """Of the machine."""
        return self.requests_per_s * self.output_tokens

    @property
    def input_tokens_per_s(self) -> float:
        """Of the machine."""
        return self.requests_per_s * self.prompt_tokens

    @property
    def family(self) -> tuple[object, ...]:
        """Shared by points that differ in their batch alone."""
        prefill = None if self.prefill is None else (self.prefill.partition, self.prefill.replicas)
        replicas = self.candidate.replicas
        return (self.precision, self.candidate.partition, replicas, prefill)

    @property
    def rates(self) -> TokenRates:
        """Tokens of the machine in a second."""
        return TokenRates(
            output_tokens_per_s=self.output_tokens_per_s,
            input_tokens_per_s=self.input_tokens_per_s,
        )

    def watts(self, basis: PowerBasis) -> float:
        """The divisor of tokens on `basis`."""
        return {
            PowerBasis.PROVISIONED: self.provisioned_watts,
            PowerBasis.DRAWN: self.drawn_watts,
            PowerBasis.ALL_IN: self.all_in_watts,
        }[basis]

    def output_tokens_per_s_per_mw(self, basis: PowerBasis = PowerBasis.PROVISIONED) -> float:
        """Output tokens per second and megawatt."""
        return self.output_tokens_per_s / self.watts(basis) * WATTS_PER_MEGAWATT
