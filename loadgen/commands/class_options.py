"""Makes a class's options from the values typed for it."""

from collections.abc import Mapping
from typing import Any, Final

from loadgen.runs.options import ClassOptions
from loadgen.workloads.class_specs import arrival_spec, workload_spec
from startup.typed_options import given_options

DEFAULT_CLASS: Final = "default"


def class_options(values: Mapping[str, Any], *, name: str = DEFAULT_CLASS) -> ClassOptions:
    """Check the values of one class and fill in defaults; raises OptionError."""
    given = given_options(ClassOptions, values)
    if given.get("api") == "chat":
        given = {"prompts": "text", **given}
    if "headers" in given:
        given["headers"] = dict(given["headers"])
    parts = {"name": name, "workload": workload_spec(values), "arrivals": arrival_spec(values)}
    return ClassOptions(**given | parts)
