"""Whole report texts, held against files: `pytest --update-golden` writes the files anew."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFolder:
    """The folder `golden` beside a test. Blanks at the ends of lines are not compared."""

    path: Path
    update: bool

    def holds(self, name: str, text: str) -> None:
        """Fails where `text` is not that of the file; writes the file instead with `update`."""
        kept, shown = self.path / name, "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if self.update:
            self.path.mkdir(exist_ok=True)
            kept.write_text(shown, encoding="utf-8")
        assert kept.is_file(), f"{kept}: written by pytest --update-golden"
        assert shown == kept.read_text(encoding="utf-8"), f"{kept}: see pytest --update-golden"
