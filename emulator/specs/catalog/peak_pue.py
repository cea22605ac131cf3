"""Facility watts per IT watt on the design day, by how a site is cooled."""

from typing import Final

from emulator.specs.figure import Figure

_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"

AIR: Final = Figure(
    1.2, "facility W per IT W", f"{_SEMIANALYSIS}: peak of an air-optimised site, about 1.2"
)
LIQUID: Final = Figure(
    1.5,
    "facility W per IT W",
    f"{_SEMIANALYSIS}: peak of a central-loop liquid-cooled site, about 1.5",
)
