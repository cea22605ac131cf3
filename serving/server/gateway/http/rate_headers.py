"""Headers that OpenAI's clients read: the rest of a key's limits, and when to retry.

Source: https://platform.openai.com/docs/guides/rate-limits (durations as "1s", "6m0s");
openai-python and openai-node wait for `retry-after-ms`, else `retry-after`.
"""

import math

from serving.policy.admission.refusal import RateState
from serving.server.gateway.http.asgi import Headers


def rate_headers(rate: RateState) -> Headers:
    """Headers of the key's limits, if any."""
    headers: Headers = []
    for unit, limit, remaining, reset_s in (
        (b"requests", rate.limit_requests, rate.remaining_requests, rate.reset_requests_s),
        (b"tokens", rate.limit_tokens, rate.remaining_tokens, rate.reset_tokens_s),
    ):
        if limit is None:
            continue
        headers += (
            (b"x-ratelimit-limit-" + unit, str(limit).encode()),
            (b"x-ratelimit-remaining-" + unit, str(max(0, remaining or 0)).encode()),
            (b"x-ratelimit-reset-" + unit, duration_text(reset_s or 0.0).encode()),
        )
    return headers


def retry_headers(retry_after_s: float) -> Headers:
    """The delay in both spellings; never zero, which clients ignore."""
    wait_ms = max(1, math.ceil(retry_after_s * 1e3))
    return [
        (b"retry-after", str(-(-wait_ms // 1000)).encode()),
        (b"retry-after-ms", str(wait_ms).encode()),
    ]


def duration_text(seconds: float) -> str:
    """A duration as OpenAI writes it: 0.02 -> "20ms", 1.5 -> "1.5s", 360 -> "6m0s"."""
    milliseconds = max(0, math.ceil(seconds * 1e3 - 1e-6))
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole_s, rest_ms = divmod(milliseconds, 1000)
    minutes, second = divmod(whole_s, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{second}.{rest_ms:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minute}m{text}"
    return f"{minute}m{text}" if minute else text
