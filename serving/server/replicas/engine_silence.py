"""How often a replica's engine is asked for an answer, and how long its silence may last."""

from typing import Final

ENGINE_LOOK_EVERY_S: Final = 5.0
"""Wall seconds between two questions about its engine, which describes the whole machine."""

ENGINE_QUESTION_S_MAX: Final = 10.0
"""Of a replica that says how old its engine's answer is: it waits 1.5 s for a new one, and a busy
machine adds to it."""

ENGINE_SILENT_S_MIN: Final = ENGINE_LOOK_EVERY_S + ENGINE_QUESTION_S_MAX
"""An engine in good health may seem silent for so long: a limit below it would kill it."""
