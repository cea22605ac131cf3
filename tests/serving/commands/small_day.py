"""A day of three hours on a few replicas: seconds of work for `ultraserve day`."""

from pathlib import Path

SMALL_DAY = (
    *("--model", "qwen3-30b-a3b", "--chips", "2", "--lnc", "2", "--ep", "2", "--tp", "1"),
    *("--policy", "fixed:54", "--requests", "40", "--slo", "ttft=200ms,tpot=30ms@p90"),
    *("--peak", "50", "--processes", "1", "--max-num-seqs", "32", "--no-cache"),
)


def lengths(folder: Path) -> Path:
    """A trace of 200 short requests, for its lengths."""
    path = folder / "lengths.jsonl"
    rows = (
        f'{{"timestamp": {at}, "input_length": {300 + at % 7}, "output_length": {3 + at % 4}}}'
        for at in range(200)
    )
    path.write_text("\n".join(rows) + "\n")
    return path


def hours(folder: Path) -> Path:
    path = folder / "hours.csv"
    rows = (f"{h},2024-05-10T{h:02}:00Z,{n},0" for h, n in enumerate((900, 100, 900)))
    path.write_text("hour_index,utc_hour_start,requests_est,rps_est\n" + "\n".join(rows) + "\n")
    return path
