"""Which release of its stack a measured row ran, by the benchmark's public history.

`emulator/data/stack_releases.csv` has the image of each configuration of DeepSeek-R1 in
github.com/SemiAnalysisAI/InferenceX, from the day (UTC) of a commit on: configs/amd-master.yaml and
nvidia-master.yaml, and .github/workflows/dsr1-tmpl.yml before them. The release is in the image's
tag; that of TensorRT-LLM in Dynamo's images is in its support matrix (github.com/ai-dynamo/dynamo),
and images of which no source names a release have none.
"""

import csv
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from importlib.resources import files

from serving.analysis.validate.measured_row import Configuration

_Images = Mapping[tuple[str, str, str, str], list[tuple[date, str]]]


def launch_release(configuration: Configuration) -> str:
    """Such as "sglang 0.5.12"; empty where no day, image or release is known.

    The day finds the image that was launched, and is in no figure. A row with speculation has the
    plain configuration's image until there is one of its own.
    """
    day = configuration.day
    if day is None:
        return ""
    row = (configuration.hardware, configuration.framework, configuration.precision)
    for method in ("mtp", "none") if configuration.speculative else ("none",):
        launched = [each for first, each in _images().get((*row, method), []) if first <= day]
        if launched:
            return launched[-1]
    return ""


@lru_cache(maxsize=1)
def _images() -> _Images:
    """Releases by hardware, framework, precision and speculation, in the order of their days."""
    found: dict[tuple[str, str, str, str], list[tuple[date, str]]] = {}
    text = files("emulator.data").joinpath("stack_releases.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        key = line["hardware"], line["framework"], line["precision"], line["spec_method"]
        found.setdefault(key, []).append((date.fromisoformat(line["from"]), line["release"]))
    return {key: sorted(each) for key, each in found.items()}
