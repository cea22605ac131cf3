import json
from pathlib import Path

import pytest

from emulator.specs.shipped_fits import ShippedFits
from serving.analysis.validate.refit import main
from tests.serving.analysis.validate.made_up_measurements import write_rows


@pytest.mark.slow
def test_a_refit_writes_what_ships(tmp_path: Path) -> None:
    rows = [
        {"hardware": hardware, "conc": str(conc), "isl": isl, "date": f"2026-0{month}-01"}
        for hardware in ("h200", "b200")
        for conc in (4, 32)
        for isl in ("1024", "8192")
        for month in (2, 4)
    ]
    data, output = write_rows(tmp_path / "rows.csv", rows), tmp_path / "fits.json"

    assert main(["--data", str(data), "--output", str(output), "--date", "2026-11-21"]) == 0

    fits = ShippedFits.from_data(json.loads(output.read_text()))
    assert fits.data["rows"] == len(rows)
    assert fits.data["date"] == "2026-11-21"
    assert set(fits.without) == {"h200", "b200"}
    assert set(fits.everything.generations) == {"hopper", "blackwell"}
    assert set(fits.without["h200"].generations) == {"blackwell"}
    assert set(fits.intervals_without) == {"h200", "b200"}
