"""From the stream of results to figures: pure, so that any of them can be computed again.

Every duration here is in the run's time: emulated if the server keeps emulated time, otherwise
wall. Only requests that completed are measured; the others are counted by kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.clients.client import ABORTED
from loadgen.percentiles import Float64s, Percentiles
from loadgen.result import Result
from loadgen.server_clock import ServerWindow

DEFINITIONS: Final = """\
measures (n output tokens; times are the server's emulated time = wall time / dilation,
or wall time where a server keeps no clock of its own):
  TTFT    arrival of the first chunk - time the request was due      [ms]
          (from send: - time it was really sent)
  E2E     arrival of the last chunk - time the request was due       [ms]
  TPOT    (E2E - TTFT) / (n - 1), for requests of several chunks     [ms per token]
  ITL     each gap between two chunks of a request; where c chunks carried n > c tokens,
          x (c - 1) / (n - 1): a chunk's tokens share the gap evenly [ms]
  window  first send to last token
  output tokens/s          output tokens / window                    [1/s]
  average watts            facility joules / seconds, between two readings of the
                           server's meters just around the window    [W]
  joules/token             facility joules / output tokens           [J]
  output tokens/s per MW   output tokens/s / (watts / 1,000,000), with the average watts
                           of the facility (PUE included), and with the watts provisioned
percentiles are exact (every sample is kept); failed requests are counted, not measured"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The figures of a run; None for what could not be known. `_s` and `_ms` are the run's time.

    `requests` = completed + failed + aborted. `send_delay_ms` is how late requests were sent.
    `short_replies` and `resized_prompts` count replies and prompts whose length, by the server's
    count, is not the one asked for; `uncounted_replies` those that the server did not count.
    `metered_s` is the time that the energy was metered over, `lag_s` the emulation's own lateness.
    """

    requests: int
    completed_requests: int
    failed_requests: int
    aborted_requests: int
    errors: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    chunks: int
    short_replies: int
    resized_prompts: int
    uncounted_replies: int
    wall_s: float | None
    window_s: float | None
    ttft_ms: Percentiles
    ttft_from_send_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    send_delay_ms: Percentiles
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    tokens_per_s_per_chip: float | None
    average_watts: float | None
    chip_average_watts: float | None
    joules_per_output_token: float | None
    output_tokens_per_s_per_facility_mw: float | None
    output_tokens_per_s_per_provisioned_mw: float | None
    metered_s: float | None
    lag_s: float | None


def measure(results: Sequence[Result], server: ServerWindow) -> Measures:
    """Compute every figure; raises ValueError for results of another dilation than the server's."""
    if any(result.dilation != server.dilation for result in results):
        raise ValueError(f"a result's dilation is not the server's {server.dilation}")
    done = [result for result in results if result.error is None]
    errors = Counter(result.error for result in results if result.error is not None)
    aborted = errors[ABORTED]
    output_tokens = sum(result.counted_output_tokens for result in done)
    input_tokens = sum(_input_tokens(result) for result in done)
    wall_s = _window_wall_s(results, done)
    window_s = None if wall_s is None else wall_s / server.dilation
    rate = _ratio(output_tokens, window_s)
    watts = _ratio(server.facility_joules, server.emulated_s)
    sent_late_ns = np.array([result.sent_ns - result.intended_ns for result in results])
    latencies = _Latencies.of(done, server.dilation)
    return Measures(
        requests=len(results),
        completed_requests=len(done),
        failed_requests=len(results) - len(done) - aborted,
        aborted_requests=aborted,
        errors=dict(sorted(errors.items())),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        chunks=sum(len(result.chunk_ns) for result in done),
        short_replies=sum(r.counted_output_tokens != r.asked_output_tokens for r in done),
        resized_prompts=sum(_input_tokens(r) != r.asked_input_tokens for r in done),
        uncounted_replies=sum(result.output_tokens is None for result in done),
        wall_s=wall_s,
        window_s=window_s,
        ttft_ms=Percentiles.of(latencies.ttft_ms),
        ttft_from_send_ms=Percentiles.of(latencies.ttft_from_send_ms),
        tpot_ms=Percentiles.of(latencies.tpot_ms),
        itl_ms=Percentiles.of(latencies.itl_ms),
        e2e_ms=Percentiles.of(latencies.e2e_ms),
        send_delay_ms=Percentiles.of(sent_late_ns / (1e6 * server.dilation)),
        requests_per_s=_ratio(len(done), window_s),
        output_tokens_per_s=rate,
        total_tokens_per_s=_ratio(input_tokens + output_tokens, window_s),
        tokens_per_s_per_chip=_ratio(rate, server.chips),
        average_watts=watts,
        chip_average_watts=_ratio(server.chip_joules, server.emulated_s),
        joules_per_output_token=_ratio(server.facility_joules, output_tokens),
        output_tokens_per_s_per_facility_mw=_per_megawatt(rate, watts),
        output_tokens_per_s_per_provisioned_mw=_per_megawatt(rate, server.provisioned_watts),
        metered_s=server.emulated_s,
        lag_s=server.lag_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Latencies:
    """Samples in ms of the run's time: one per request, [requests]; fewer for tpot; itl per gap."""

    ttft_ms: Float64s
    ttft_from_send_ms: Float64s
    e2e_ms: Float64s
    tpot_ms: Float64s
    itl_ms: Float64s

    @classmethod
    def of(cls, done: Sequence[Result], dilation: float) -> "_Latencies":
        """Of completed requests: each has at least one chunk."""
        times = np.array(  # [requests, 4]
            [(r.intended_ns, r.sent_ns, r.chunk_ns[0], r.chunk_ns[-1]) for r in done],
            dtype=np.int64,
        ).reshape(-1, 4)
        intended, sent, first, last = times.T
        tokens = np.array([r.counted_output_tokens for r in done], dtype=np.int64)
        chunks = np.array([len(r.chunk_ns) for r in done], dtype=np.int64)
        # One chunk has no inner time: all its tokens came at once, whatever they took to make.
        spread = (tokens > 1) & (chunks > 1)
        per_token = 1.0 / np.maximum(tokens - 1, 1)
        gaps = [
            np.diff(np.array(result.chunk_ns, dtype=np.int64)) * share
            for result, share, counts in zip(done, (chunks - 1) * per_token, spread, strict=True)
            if counts
        ]
        ns_per_ms = 1e6 * dilation
        return cls(
            ttft_ms=(first - intended) / ns_per_ms,
            ttft_from_send_ms=(first - sent) / ns_per_ms,
            e2e_ms=(last - intended) / ns_per_ms,
            tpot_ms=((last - first) * per_token)[spread] / ns_per_ms,
            itl_ms=np.concatenate([np.empty(0), *gaps]) / ns_per_ms,
        )


def _input_tokens(result: Result) -> int:
    return result.asked_input_tokens if result.input_tokens is None else result.input_tokens


def _window_wall_s(results: Sequence[Result], done: Sequence[Result]) -> float | None:
    """First send of all to last token of those that completed, in wall seconds."""
    if not done:
        return None
    first_ns = min(result.sent_ns for result in results)
    return (max(result.chunk_ns[-1] for result in done) - first_ns) / 1e9


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient, None if either is unknown or there is nothing to divide by."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator


def _per_megawatt(tokens_per_s: float | None, watts: float | None) -> float | None:
    return _ratio(tokens_per_s, None if watts is None else watts / 1e6)
