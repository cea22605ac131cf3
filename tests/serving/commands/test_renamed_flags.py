"""Old names of flags work, and say so."""

import pytest

from loadgen.workloads.lengths import Lognormal, parse_lengths
from serving.commands.renamed_flags import with_new_names


def test_an_old_name_becomes_the_new_one_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["serve", "--reserve=0.5", "--port", "1", "--reserved"]

    assert with_new_names(given) == [
        *("serve", "--interactive-headroom=0.5", "--port", "1", "--reserved")
    ]
    assert "--reserve is now --interactive-headroom" in capsys.readouterr().err


def test_words_after_a_double_dash_are_not_flags(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["serve", "--", "--reserve", "x"]

    assert with_new_names(given) == given
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pareto --isl 9 --osl=8 --png a.png", "pareto --input 9 --output=8 --plot a.png"),
        ("pareto --max-batched-tokens 9", "pareto --max-num-batched-tokens 9"),
        ("day --replica-chips 2 --plot a.png", "day --chips 2 --plot a.png"),
        ("simulate --plot a.html", "simulate --html a.html"),
        ("explain step --prompt 9 --svg a.svg", "explain step --input 9 --plot a.svg"),
        ("explain point FILE --prompt", "explain point FILE --prompt"),
        ("train --output DIR", "train --dir DIR"),
        ("simulate --output 9 --window 1m-2m", "simulate --output 9 --window 1m-2m"),
        ("plan --window 9 --speed-up 2 --kwh 1", "plan --peak-window 9 --speedup 2 --price-kwh 1"),
    ],
)
def test_a_name_is_old_where_its_command_had_it(
    old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_new_names(old.split()) == new.split()
    assert ("warning" in capsys.readouterr().err) == (old != new)


def test_old_lengths_keep_their_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    words = with_new_names(["plan", "--isl", "400", "--rate", "2", "--spread=1"])

    assert words[:3] == ["plan", "--rate", "2"]
    prompt, reply = (parse_lengths(words[at]) for at in (4, 6))
    assert isinstance(prompt, Lognormal)
    assert isinstance(reply, Lognormal)
    assert (prompt.mean, reply.mean) == (400, 256)
    assert prompt.deviation == pytest.approx(400 * 1.3108, rel=1e-4)  # sqrt(e^1 - 1)
    assert "--isl, --spread: say --input lognormal:400" in capsys.readouterr().err


def test_old_lengths_of_a_profile_are_medians_and_without_a_spread_they_are_fixed() -> None:
    fixed = ["profile", "--prompt-tokens", "100", "--output-tokens", "8", "--spread", "0"]

    assert with_new_names(fixed) == ["profile", "--input", "100", "--output", "8"]
    spread = parse_lengths(with_new_names(["profile", "--prompt-tokens", "100"])[2])
    assert isinstance(spread, Lognormal)
    assert spread.mean == pytest.approx(113.3, abs=0.05)  # 100 e^(1/8)


@pytest.mark.parametrize("words", ["--isl few", "--isl -1", "--isl 5 --spread 9", "--isl"])
def test_wrong_old_lengths_are_left_to_be_refused(words: str) -> None:
    assert with_new_names(["plan", *words.split()]) == ["plan", *words.split()]


def test_a_new_length_beside_an_old_one_stands() -> None:
    words = with_new_names(["compare", "--isl", "5", "--spread", "0", "--output", "7"])

    assert words == ["compare", "--output", "7", "--input", "5"]
