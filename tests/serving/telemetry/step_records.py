"""Steps by hand: two chips, a rank each, three engines, round numbers."""

from typing import Any

from serving.wire.step_record import EngineBusy, StepRecord

MS = 1_000_000


def a_step(step: int = 0, **given: Any) -> StepRecord:
    """A decode step of 10 ms: 8 and 4 tokens, chip 0 twice as busy as chip 1."""
    fields: dict[str, Any] = {
        "step": step,
        "begin_ns": 10 * MS * step,
        "pause_ns": 0,
        "duration_ns": 10 * MS,
        "prefill_tokens": (0, 0),
        "decode_tokens": (8, 4),
        "requests_running": (8, 4),
        "requests_waiting": (1, 0),
        "kv_blocks_used": (100, 50),
        "chips": (0, 1),
        "engines": (
            EngineBusy(engine="tensor", busy_ns=(2 * MS, 1 * MS)),
            EngineBusy(engine="dma", busy_ns=(8 * MS, 4 * MS)),
            EngineBusy(engine="collectives", busy_ns=(1 * MS, 0)),
        ),
        "watts": (600.0, 500.0),
        "flops": (2e9, 1e9),
        "hbm_bytes": (4e9, 2e9),
        "link_bytes": (1e6, 0.0),
        "parts_ns": {"attention": 4.0 * MS, "experts": 5.0 * MS, "dispatch_combine": 1.0 * MS},
        "bound": {"attention": "dma", "experts": "tensor"},
    }
    return StepRecord(**(fields | given))


def a_prefill(step: int = 0, **given: Any) -> StepRecord:
    """The same with 90 prompt tokens on rank 0 and 10 decodes on rank 1: nine tenths of it."""
    return a_step(step, **({"prefill_tokens": (90, 0), "decode_tokens": (0, 10)} | given))
