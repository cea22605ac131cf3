"""How a step's time moves with each constant and assumption behind it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from emulator.errors import ConfigError
from emulator.specs.calibration import Calibration
from emulator.specs.figure import Figure, figures_of
from emulator.specs.overlap import Overlap
from emulator.specs.system import SystemSpec
from serving.analysis.explain.step_question import CountedSteps, StepQuestion

MOVED_SHARE = 0.1
"""By which a figure without a known spread is moved, either way."""
_SMALL = 0.01
"""Relative move behind an elasticity."""
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """A figure moved, or an assumption replaced.

    Attributes:
        low, high: values of a moved figure; None for an assumption in words.
        low_ns, high_ns: the step's duration at these; equal for an assumption in words.
        elasticity: relative change of the step over that of the figure, near its value.
        why: what sets the range.
    """

    name: str
    low: float | None
    high: float | None
    low_ns: float
    high_ns: float
    elasticity: float | None
    why: str
    figure: Figure | None

    def widest(self, step_ns: float) -> float:
        """The largest change of the step, as a share."""
        return max(abs(self.low_ns - step_ns), abs(self.high_ns - step_ns)) / step_ns


def sensitivities(question: StepQuestion, counted: CountedSteps) -> tuple[Sensitivity, ...]:
    """All that move the step, the strongest first."""
    step_ns = counted.duration_ns()
    found = (
        *_of_calibration(question, counted),
        *_of_machine(question),
        *_of_assumptions(question),
        *_of_overlap(question),
    )
    moving = [each for each in found if each.widest(step_ns) > _NOTHING]
    return tuple(sorted(moving, key=lambda each: (-each.widest(step_ns), each.name)))


def _of_calibration(question: StepQuestion, counted: CountedSteps) -> Iterator[Sensitivity]:
    calibration = question.assumptions.calibration
    for name, figure in calibration.figures():
        others = [getattr(each, name).value for each in question.left_out]
        low, high = min(others, default=figure.value), max(others, default=figure.value)
        why = f"{len(others)} fits without one machine"
        if low == high:
            low, high, why = *_either_way(figure.value, MOVED_SHARE), f"+-{MOVED_SHARE:.0%}"
        low, high = (_allowed(name, value) for value in (low, high))
        near = [_allowed(name, value) for value in _either_way(figure.value, _SMALL)]

        def at(value: float, name: str = name) -> float:
            return counted.duration_ns(_moved(calibration, name, value))

        if low == high:
            continue
        yield Sensitivity(
            name=name,
            low=low,
            high=high,
            low_ns=at(low),
            high_ns=at(high),
            elasticity=_elasticity(figure.value, near, [at(value) for value in near]),
            why=why,
            figure=figure,
        )


def _either_way(value: float, share: float) -> tuple[float, float]:
    return value * (1 - share), value * (1 + share)


def _allowed(name: str, value: float) -> float:
    """Within the bounds that a calibration keeps."""
    return min(value, 1.0) if name.endswith("_share") or name == "turn_taking" else value


def _moved(calibration: Calibration, name: str, value: float) -> Calibration:
    return replace(calibration, **{name: replace(getattr(calibration, name), value=value)})


def _elasticity(value: float, at: list[float], ns: list[float]) -> float | None:
    """Of the step, by the figure: d ln(step) / d ln(figure)."""
    if not value or at[0] == at[1]:
        return None
    return (ns[1] - ns[0]) / (ns[0] + ns[1]) * (at[0] + at[1]) / (at[1] - at[0])


def _of_machine(question: StepQuestion) -> Iterator[Sensitivity]:
    """Each assumed figure of the chip and its system, moved."""
    system = question.system
    for owner in (system.chip, system.chip.matrix, system):
        for name, figure in figures_of(owner):
            if not figure.assumed or not figure.value:
                continue
            if name.endswith("_share") and figure.value == 1:
                continue
            low, high = _either_way(figure.value, MOVED_SHARE)
            near = list(_either_way(figure.value, _SMALL))
            ns = [
                _on(question, owner, name, replace(figure, value=value))
                for value in (low, high, *near)
            ]
            if any(each is None for each in ns):
                continue
            low_ns, high_ns, *near_ns = (each for each in ns if each is not None)
            yield Sensitivity(
                name=f"{system.name if owner is system else system.chip.name} {name}",
                low=low,
                high=high,
                low_ns=low_ns,
                high_ns=high_ns,
                elasticity=_elasticity(figure.value, near, near_ns),
                why=f"+-{MOVED_SHARE:.0%}",
                figure=figure,
            )


def _on(question: StepQuestion, owner: object, name: str, figure: Figure) -> float | None:
    """The step with one figure of the machine changed; None where only its own value is valid."""
    system, chip = question.system, question.system.chip
    try:
        if owner is system:
            other = replace(system, **{name: figure})  # type: ignore[arg-type]
        elif owner is chip:
            other = replace(system, chip=replace(chip, **{name: figure}))  # type: ignore[arg-type]
        else:
            matrix = replace(chip.matrix, **{name: figure})
            other = replace(system, chip=replace(chip, matrix=matrix))
        return _duration_on(question, other)
    except (ConfigError, ValueError):  # a count stays whole, chips fill racks
        return None


def _duration_on(question: StepQuestion, system: SystemSpec) -> float:
    return replace(question, system=system).counted().duration_ns()


def _of_assumptions(question: StepQuestion) -> Iterator[Sensitivity]:
    """Every other assumption where sources disagree."""
    system = question.system
    for spec, switches in ((system, system.variants), (system.chip, system.chip.switches)):
        for switch in switches:
            own = switch.assumption_of(spec)
            for other in switch.assumptions:
                if other is own:
                    continue
                ns = _duration_on(question, system.assuming(switch.name, other.name))
                yield _in_words(
                    f"--assumption {switch.name}={other.name}", ns, f"sources disagree: {other.why}"
                )


def _of_overlap(question: StepQuestion) -> Iterator[Sensitivity]:
    for overlap in Overlap:
        if overlap is not question.assumptions.overlap:
            ns = question.with_overlap(overlap).counted().duration_ns()
            yield _in_words(f"--overlap {overlap.value}", ns, "a choice of the engine's software")


def _in_words(name: str, ns: float, why: str) -> Sensitivity:
    return Sensitivity(
        name=name,
        low=None,
        high=None,
        low_ns=ns,
        high_ns=ns,
        elasticity=None,
        why=why,
        figure=None,
    )
