"""All families of a folder of measured kernels: fitted, scored, written down."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from emulator.errors import ConfigError
from serving.analysis.validate.kernels.exchange_kernels import ExchangeScores, exchange_scores
from serving.analysis.validate.kernels.kernel_families import FAMILIES
from serving.analysis.validate.kernels.kernel_scores import ALL, FamilyScores, scores_of
from serving.analysis.validate.measured_row import ENVIRONMENT

FOLDER: Final = "kernels"
METHOD: Final = (
    "least squares on log errors with soft L1; deviations of kernels by stack and generation "
    "shrunk by Gaussian priors"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelValidation:
    """Of a folder's kernels.

    Attributes:
        families: fitted and scored.
        unknown: numbers of kernels by reason, of families of which no kernel is known.
        exchanges: of DeepEP's kernels, which are not fitted.
    """

    families: tuple[FamilyScores, ...]
    unknown: Mapping[str, Mapping[str, int]]
    exchanges: ExchangeScores


def kernels_folder(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The given folder, else `kernels` in the environment's or in ./measurements, else
    ConfigError.
    """
    named = environment.get(ENVIRONMENT)
    places = [Path(named)] if named else []
    folders = [given] if given else [place / FOLDER for place in (*places, Path("measurements"))]
    for folder in folders:
        if folder.is_dir():
            return folder
    looked = ", ".join(map(str, folders))
    expected = f"a folder of kernels' tables, or one in {ENVIRONMENT}; looked for {looked}"
    raise ConfigError("kernels", given or "(not given)", expected)


def kernel_validation(folder: Path) -> KernelValidation:
    """Every family of the folder; raises ConfigError, naming it, for a table that is not there,
    and where no kernel of any family is known.
    """
    tables = [(family, family.read(folder)) for family in FAMILIES]
    unknown = {family.name: rows.excluded for family, rows in tables if not len(rows)}
    if len(unknown) == len(tables):
        reasons = sorted({reason for excluded in unknown.values() for reason in excluded})
        raise ConfigError("kernels", folder, f"kernels that are known; {'; '.join(reasons)}")
    return KernelValidation(
        families=tuple(scores_of(family, rows) for family, rows in tables if len(rows)),
        unknown=unknown,
        exchanges=exchange_scores(folder),
    )


def constants_data(scores: Sequence[FamilyScores], folder: Path, *, day: date) -> dict[str, Any]:
    """What `emulator.timing.laws.shipped_laws` reads."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.csv")):
        digest.update(path.read_bytes())
    return {
        "data": {
            "folder": folder.name,
            "sha256": digest.hexdigest(),
            "kernels": sum(each.known[ALL].kernels for each in scores),
            "date": str(day),
            "method": METHOD,
        },
        "families": {each.family.name: each.fitted.as_data() for each in scores},
    }


def write_constants(found: KernelValidation, folder: Path, output: Path) -> None:
    """Write `constants_data` of today; raises ConfigError unless every family was fitted."""
    if found.unknown:
        missing = ", ".join(found.unknown)
        raise ConfigError("refit", output, f"known kernels of every family in {folder}: {missing}")
    data = constants_data(found.families, folder, day=date.today())
    output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
