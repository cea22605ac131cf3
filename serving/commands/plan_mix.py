"""`ultraserve plan --model NAME=SHARE,...`: one fleet of UltraServers for several models.

Each model is planned as `ultraserve plan` does it, on its share of the requests.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from serving.commands.analysis_options import interrupted_by, interruptible, print_answer
from serving.commands.plan import ENDED, MixOptions, question_by_system

if TYPE_CHECKING:
    from serving.analysis.plan.plan_question import PlanQuestion
    from serving.commands.plan_outlook_options import OutlookOptions


def run_mix(args: argparse.Namespace, options: MixOptions, outlook: OutlookOptions) -> int:
    """Plan and print; returns 0, or 130 or 143 where a signal ended it. Raises UltraServeError."""
    from reporting.plain_text import document_lines
    from serving.analysis.plan.model_mix import plan_mix
    from serving.analysis.plan.model_mix_report import ModelMixReport

    if options.plot:
        expected = "nothing beside several models: it draws what figures do to the plan of one"
        raise ConfigError("plot", options.plot[0], expected)
    caught: list[int] = []
    questions = mix_questions(args, options)
    models = [question.sweep.model.name for _, question in questions]
    planned = partial(
        plan_mix, outlooks=outlook.terms_of(models), is_interrupted=lambda: bool(caught)
    )
    try:
        with interrupted_by(caught):
            mix = interruptible(planned, questions, options=options, ended=ENDED)
    except KeyboardInterrupt:
        return 128 + caught[0] if caught else 130
    report = ModelMixReport(mix=mix, command=f"ultraserve {shlex.join(args.words)}")
    print_answer(document_lines(report.answer()), report.fields, json=options.json)
    options.write_page(lambda: report)
    return 128 + caught[0] if caught else 0


def mix_questions(
    args: argparse.Namespace, options: MixOptions
) -> list[tuple[float, PlanQuestion]]:
    """Each model's share and question; raises UltraServeError."""
    from serving.analysis.plan.model_mix import ModelShares
    from serving.analysis.plan.plan_demand import TrafficPart

    machine = options.machine()
    prices = options.prices_on(machine.name)
    asked = ModelShares.parse(options.model)
    questions = []
    for number, model in enumerate(asked.models):
        part = TrafficPart(shares=asked.shares, number=number, seed=options.seed)
        of_model = question_by_system(args, replace(options, model=model.name), part)
        question = replace(of_model(machine), prices=prices, lose=options.lost)
        questions.append((part.share, question))
    return questions
