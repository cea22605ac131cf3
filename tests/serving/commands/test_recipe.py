import json

import pytest

from serving.main import main

SMALL = (
    *("recipe", "--model", "gpt-oss-20b", "--chips", "8", "--tp", "1", "--pp", "1,2", "--ep"),
    *("8,4", "--virtual-stages", "1", "--batch-tokens", "1048576"),
)


@pytest.mark.long
def test_json_alone_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--zero", "1", "--recompute", "none", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["chips"] == 8
    assert {row["zero"] for row in found["recipes"]} == {1}
    assert {row["recompute"] for row in found["recipes"]} == {"none"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--zero", "4"), "zero=4: expected 1, 2 or 3"),
        (("--recompute", "some"), "recompute=some: expected one of none, selective, full"),
        (("--precision", "fp4"), "precision=fp4: expected bf16 or fp8"),
        (("--tp", "x"), "tp=x: expected whole numbers"),
        (("--chips", "200", "--units", "1"), "chips=200: expected 1 to 144"),
        (("--schedule", "gpipe"), "schedule=gpipe: expected one of 1f1b, dualpipe"),
        (("--system", "dgx-h100", "--chips", "7"), "chips=7: expected chips that some recipe"),
    ],
)
def test_a_wrong_word_is_refused_in_a_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *words]) != 0

    complaint = capsys.readouterr().err
    assert said in complaint
    assert "Traceback" not in complaint


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe", "--model", "kimi-k2", "--chips", "8"]

    assert main(words) != 0
    assert "each of 8 chips would hold" in capsys.readouterr().err
