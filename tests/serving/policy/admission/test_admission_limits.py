from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.policy.admission.admission_limits import AdmissionLimits


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue_requests", 0),
        ("queue_tokens", 0),
        ("batch_queue_requests", 0),
        ("batch_queue_tokens", 0),
        ("batch_wait_s", 0.0),
        ("ttft_target_s", 0.0),
        ("ttft_target_s", float("nan")),
        ("interactive_headroom", 1.0),
        ("interactive_headroom", -0.1),
    ],
)
def test_a_bound_that_lets_nothing_in_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        AdmissionLimits(**{field: value})
