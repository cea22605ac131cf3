"""Whole report texts against files: `pytest --update-golden` rewrites the files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFolder:
    """The folder `golden` beside a test. Trailing blanks are not compared."""

    path: Path
    update: bool

    def holds(self, name: str, text: str) -> None:
        """Fail unless `text` is the file's; with `update`, write the file instead."""
        kept, shown = self.path / name, "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if self.update:
            self.path.mkdir(exist_ok=True)
            kept.write_text(shown, encoding="utf-8")
        assert kept.is_file(), f"{kept}: written by pytest --update-golden"
        assert shown == kept.read_text(encoding="utf-8"), f"{kept}: see pytest --update-golden"
