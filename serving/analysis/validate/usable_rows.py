"""The rows of a file that can be predicted, and reasons for the others."""

from collections.abc import Iterable
from dataclasses import dataclass

from emulator.errors import ConfigError
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.measured_row import ExcludedRow, MeasuredRow
from serving.analysis.validate.row_deployment import deployment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableRow:
    """A row with its deployment and load."""

    measured: MeasuredRow
    load: RowLoad

    @property
    def drafts_as_named(self) -> bool:
        """Whether it ran with the speculation that its column names, or without as that says."""
        return self.measured.configuration.speculative == self.load.deployment.stack.drafts


def usable_rows(
    rows: Iterable[MeasuredRow | ExcludedRow],
) -> tuple[tuple[UsableRow, ...], tuple[ExcludedRow, ...]]:
    """Usable rows and excluded ones (by configuration, or the file's own mark), in file order."""
    usable, excluded = [], []
    for row in rows:
        if isinstance(row, ExcludedRow):
            excluded.append(row)
            continue
        configuration = row.configuration
        try:
            if not row.usable:
                raise ConfigError(field="usable", value=0, expected="1: the file marks this row")
            deployment = deployment_of(configuration, row.users)
        except ConfigError as error:
            excluded.append(
                ExcludedRow(
                    file=row.file,
                    line=row.line,
                    hardware=configuration.hardware,
                    reason=str(error),
                )
            )
            continue
        usable.append(UsableRow(measured=row, load=RowLoad(deployment=deployment, users=row.users)))
    return tuple(usable), tuple(excluded)
