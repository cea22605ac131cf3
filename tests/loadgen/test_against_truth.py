"""What the program reports, held against a server that knows what it did.

Both are programs of their own. A machine that others use makes any client late, now here, now
there: where it says itself that its loop was later than 1 ms, so much is allowed, up to 5; and a
figure is wrong if it is so in each of several runs. Delays are short, so that 1 ms decides.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.loadgen.truth_process import truth_of, truth_process

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 60
DELAYS = ("--ttft", "20ms-80ms", "--itl", "5ms-15ms")
LAG_MS_MAX = 5.0
TRIES = 5


def wrong_figures(folder: Path) -> dict[str, str]:
    """Percentiles further from the truth than 2 %, 1 ms and the lag reported: by how much."""
    report = folder / "report.json"
    with truth_process(*DELAYS) as server:
        words = ["run", "--url", server.url, "--input", "16", "--output", "6", "--quiet"]
        words += ["--requests", str(REQUESTS), "--rate", "60", "--json", str(report)]
        subprocess.run([sys.executable, "-m", "loadgen", *words], cwd=ROOT, check=True, timeout=60)
    found = json.loads(report.read_text())
    truth = truth_of(server.served[-REQUESTS:])  # what came before warmed up
    assert found["completed_requests"] == truth.ttft_ms.size == REQUESTS
    allowed_ms = min(max(1.0, found["client"]["loop_lag_p99_wall_ms"] or 0.0), LAG_MS_MAX)
    true = {"ttft_from_send_ms": truth.ttft_ms, "ttft_ms": truth.ttft_ms, "tpot_ms": truth.tpot_ms}
    return {
        f"{name} p{percentile}": f"{found[name][f'p{percentile}']} for {true_ms}"
        for name, samples in true.items()
        for percentile in (50, 90, 99)
        if found[name][f"p{percentile}"]
        != pytest.approx(
            true_ms := float(np.percentile(samples, percentile)), rel=0.02, abs=allowed_ms
        )
    }


@pytest.mark.process
def test_measured_percentiles_are_the_server_s_known_delays_within_2_percent_or_1_ms(
    tmp_path: Path,
) -> None:
    wrong: dict[str, str] = {}
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        found = wrong_figures(folder)
        wrong = {name: words for name, words in found.items() if not attempt or name in wrong}
        if not wrong:
            return
    raise AssertionError(wrong)
