"""Energy of each traced request, attached to its last output."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs

from serving.engine.request_trace import TRACE_KEY, RequestTrace
from serving.engine.step_report import StepReport
from serving.plugin.request_place import WEIGHTS_KEY, RequestPlace


class TracedRequests:
    """Traces of the requests in `places`; does nothing unless `traces`."""

    def __init__(
        self, ranks: Sequence[Scheduler], places: Mapping[str, RequestPlace], *, traces: bool
    ) -> None:
        self._ranks = ranks
        self._places = places
        self._traces = traces

    def charge(self, report: StepReport | None, decisions: Sequence[SchedulerOutput]) -> None:
        """Split a step's joules evenly over its tokens, before the schedulers get these."""
        if not self._traces or report is None or report.energy is None:
            return
        energy = report.energy
        tokens = sum(decisions[rank].total_num_scheduled_tokens for rank in energy.ranks)
        if not tokens:
            return
        chip_joules, facility_joules = energy.per_token(tokens)
        places, dilation = self._places, report.dilation
        for rank in energy.ranks:
            chips, requests = energy.chips_of(rank), self._ranks[rank].requests
            for name, count in decisions[rank].num_scheduled_tokens.items():
                request = requests.get(name)
                if request is None:
                    continue  # its client has left meanwhile
                place = places[name]
                trace = place.trace
                if trace is None:
                    trace = place.trace = RequestTrace(dilation)
                trace.at(rank, chips)
                if request.num_output_tokens:
                    trace.decode_chip_joules += count * chip_joules
                    trace.decode_facility_joules += count * facility_joules
                else:
                    trace.prefill_chip_joules += count * chip_joules
                    trace.prefill_facility_joules += count * facility_joules

    def tell(self, report: StepReport | None, told: Iterable[EngineCoreOutputs]) -> None:
        """Put trace and weights on each output that may be a request's last.

        With stop strings any may, as the API process finds them. Without a step the trace is empty.
        """
        if not self._traces or report is None:
            return
        for outputs in told:
            for output in outputs.outputs:
                place = self._places.get(output.request_id)
                if output.finish_reason is None and (place is None or not place.has_stop_strings):
                    continue
                trace = None if place is None else place.trace
                message = (trace or RequestTrace(report.dilation)).message()
                more: dict[str, Any] = {TRACE_KEY: message}
                if place is not None and place.weights:  # an end by an error brings none itself
                    more[WEIGHTS_KEY] = place.weights
                output.kv_transfer_params = (output.kv_transfer_params or {}) | more
