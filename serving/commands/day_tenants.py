"""`ultraserve day --tenants FILE`: several served models, and tenants of what they leave."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.analysis_options import interruptible, print_answer
from serving.commands.day import (
    DAY_S,
    SLO,
    DayOptions,
    first_day,
    lengths_of_day,
    training_terms,
)
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import read_options

if TYPE_CHECKING:
    from serving.analysis.day.day_trace import DayTrace
    from serving.analysis.tenants.tenant_question import (
        BatchQuestion,
        JobQuestion,
        ReplicaTerms,
        ServedQuestion,
        TenantSettings,
    )
    from serving.analysis.tenants.tenants_file import (
        BatchEntry,
        ServedEntry,
        TenantsFile,
        TrainEntry,
    )
    from serving.simulator.job_cost import JobTerms

_OF_THE_FILE: Final = (
    *("slo", "trace", "peak", "input", "output", "lengths", "cold"),
    *("policy", "policies", "compare", "unit", "train_model", "train_recipe"),
    *("check_hour", "check_minutes", "ultraservers", "group_chips"),
)
"""Options that the file has the place of, or that its day has no use for."""
_HOUR_S: Final = 3_600.0


def run_tenants(args: argparse.Namespace, path: Path) -> int:
    """Walk the day and print; returns 0. Raises UltraServeError."""
    from reporting.plain_text import document_lines
    from serving.analysis.tenants.tenant_accounts import NightAccount
    from serving.analysis.tenants.tenant_day import tenant_day
    from serving.analysis.tenants.tenant_report import tenant_data, tenant_document

    options = read_options(DayOptions, args)
    settings = tenant_settings(args, path)
    ended = "ultraserve day: interrupted, no day was walked"
    account = NightAccount.of(interruptible(tenant_day, settings, options=options, ended=ended))
    if options.plot:
        from serving.analysis.tenants.tenant_chart import tenant_chart

        options.write_plots(lambda: tenant_chart(account))
    print_answer(
        document_lines(tenant_document(account)), lambda: tenant_data(account), json=options.json
    )
    return 0


def tenant_settings(args: argparse.Namespace, path: Path) -> TenantSettings:
    """The question by the file and the arguments; raises UltraServeError."""
    from serving.analysis.tenants.tenants_file import read_tenants_file

    options = read_options(DayOptions, args)
    defaults = {each.name: each.default for each in fields(DayOptions)}
    for name in _OF_THE_FILE:
        if getattr(options, name) != defaults[name]:
            flag, given = name.replace("_", "-"), getattr(options, name)
            raise ConfigError(flag, given, "nothing beside --tenants: it is not of such a day")
    return _QuestionReader(args, options, read_tenants_file(path)).settings()


class _QuestionReader:
    """Questions by the entries of a file."""

    def __init__(self, args: argparse.Namespace, options: DayOptions, file: TenantsFile) -> None:
        self._options = options
        self._schedulers = read_options(SchedulerLimits, args)
        self._file = file

    def settings(self) -> TenantSettings:
        """The whole question."""
        from serving.analysis.day.day_demand import WalkTerms
        from serving.analysis.tenants.claims import Worth
        from serving.analysis.tenants.tenant_question import TenantSettings
        from serving.policy.day_night.options import duration_s

        options, file = self._options, self._file
        traces = [
            replace(options, trace=each.trace).day_trace(seed=options.seed) for each in file.serve
        ]
        days = options.days_walked
        length_s = days * DAY_S
        if days == 1:  # a trace of less than a day is walked whole
            length_s = min([length_s, *(trace.length_s for trace in traces)])
        served = tuple(
            self._served(entry, trace) for entry, trace in zip(file.serve, traces, strict=True)
        )
        sweep = served[0].replica.sweep
        base = training_terms(options, sweep)
        return TenantSettings(
            system=sweep.system,
            served=served,
            tenants=(
                *(self._job(entry, base) for entry in file.train),
                *map(self._batch, file.batch),
            ),
            worth=Worth(unit=file.worth, kwh_dollars=file.kwh_usd),
            length_s=length_s,
            terms=WalkTerms(seed=options.seed),
            judged=options.requests,
            handovers=base,
            grace_s=duration_s(options.drain_grace, field="drain_grace"),
        )

    def _served(self, entry: ServedEntry, trace: DayTrace) -> ServedQuestion:
        from serving.analysis.day.day_comparison import zoned_policy
        from serving.analysis.tenants.tenant_question import ServedQuestion
        from serving.traffic.slo import parse_slo

        return ServedQuestion(
            replica=self._replica(entry, trace),
            slo=parse_slo(entry.slo or SLO),
            trace=trace,
            begin_s=first_day(self._options, trace) * DAY_S,
            peak_share=entry.peak / 100,
            policy=zoned_policy(entry.policy, trace.zone),
        )

    def _replica(
        self, entry: ServedEntry | BatchEntry, trace: DayTrace | None = None
    ) -> ReplicaTerms:
        from emulator.specs.models import model_by_name
        from serving.analysis.tenants.tenant_question import ReplicaTerms

        model = model_by_name(entry.model)
        options = replace(
            self._options,
            model=entry.model,
            input=entry.input,
            output=entry.output,
            lengths=None if entry.lengths is None else Path(entry.lengths),
        )
        lengths, words = lengths_of_day(options, model, trace)
        sweep = options.mean_sweep(lengths.prompt_tokens, lengths.output_tokens, self._schedulers)
        limits = replace(self._schedulers, max_model_len=model.max_context_tokens)
        return ReplicaTerms(sweep=sweep, lengths=lengths, lengths_in_words=words, limits=limits)

    def _job(self, entry: TrainEntry, base: JobTerms) -> JobQuestion:
        from emulator.specs.models import model_by_name
        from serving.analysis.tenants.tenant_question import JobQuestion

        hours = entry.deadline_hours
        return JobQuestion(
            name=entry.name,
            priority=entry.priority,
            weight=entry.weight,
            terms=replace(
                base, model=model_by_name(entry.model), searched=entry.recipe == "searched"
            ),
            checkpoint=entry.checkpoint,
            chips_least=entry.smallest_chips,
            chips_most=entry.largest_chips,
            tokens=entry.tokens,
            deadline_s=None if hours is None else hours * _HOUR_S,
            elastic=entry.elastic,
        )

    def _batch(self, entry: BatchEntry) -> BatchQuestion:
        from serving.analysis.tenants.tenant_question import BatchQuestion

        return BatchQuestion(
            name=entry.name,
            priority=entry.priority,
            weight=entry.weight,
            replica=self._replica(entry),
            chips_least=entry.smallest_chips,
            chips_most=entry.largest_chips,
            requests=entry.requests,
            at_s=tuple(hours * _HOUR_S for hours in entry.at_hours),
            deadline_s=entry.deadline_hours * _HOUR_S,
        )
