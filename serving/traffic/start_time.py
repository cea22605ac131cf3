"""Time until an engine's processes run."""

from typing import Final

START_S: Final = 30.0
"""*Assumed*: processes start and compiled models load in half a minute; no source publishes it."""
