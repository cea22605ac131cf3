"""Facility watts per IT watt on the design day, by how a site is cooled."""

from typing import Final

from emulator.specs.figure import Figure

_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"

AIR: Final = Figure(
    value=1.2,
    unit="facility W per IT W",
    source=f"{_SEMIANALYSIS}: peak of an air-optimised site, about 1.2",
)
LIQUID: Final = Figure(
    value=1.5,
    unit="facility W per IT W",
    source=f"{_SEMIANALYSIS}: peak of a central-loop liquid-cooled site, about 1.5",
)
