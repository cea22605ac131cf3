import json
from pathlib import Path

import pytest

from loadgen.errors import FileError
from loadgen.workloads.sharegpt import Conversation, read_sharegpt


def said(*messages: tuple[str, str], **more: object) -> dict[str, object]:
    return {"conversations": [{"from": who, "value": words} for who, words in messages], **more}


def written(folder: Path, *entries: object) -> Path:
    path = folder / "chats.json"
    path.write_text(json.dumps(entries))
    return path


PAIR = said(("human", "Why?"), ("gpt", "Because."), id="a")


def test_questions_and_replies_are_read_in_order_with_their_words(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        said(
            ("system", "Be brief."),
            ("human", "Why?"),
            ("gpt", "Because."),
            ("user", "Ünd?"),
            ("chatgpt", "No."),
            ("human", "a question without a reply"),
        ),
        PAIR,
    )

    read = read_sharegpt(path)

    assert read.items == (
        Conversation(system="Be brief.", turns=(("Why?", "Because."), ("Ünd?", "No."))),
        Conversation(system="", turns=(("Why?", "Because."),)),
    )
    assert read.texts == ("Be brief.", "Why?", "Because.", "Ünd?", "No.")
    assert read.counted([3, 2, 2, 2, 2]).tokens["Be brief."] == 3
    assert read.notes == ()


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        # a conversation that was cut begins with a reply
        ([("gpt", "x"), ("human", "a"), ("gpt", "b")], (("a", "b"),)),
        # out of turn, or without words: what is before it is kept
        ([("human", "a"), ("gpt", "b"), ("gpt", "c"), ("human", "d")], (("a", "b"),)),
        ([("human", "a"), ("gpt", "b"), ("human", " \n"), ("gpt", "d")], (("a", "b"),)),
        # nothing is left
        ([("human", "a"), ("human", "b"), ("gpt", "c")], None),
        ([("human", "a"), ("gpt", "")], None),
        ([("gpt", "a")], None),
        ([], None),
    ],
)
def test_a_conversation_is_kept_up_to_its_first_message_out_of_turn(
    tmp_path: Path, messages: list[tuple[str, str]], turns: tuple[tuple[str, str], ...] | None
) -> None:
    read = read_sharegpt(written(tmp_path, said(*messages), PAIR))

    assert [each.turns for each in read.items[:-1]] == ([] if turns is None else [turns])
    left_out = "of chats.json 1 entry without a question and its reply left out"
    assert read.notes == ((left_out,) if turns is None else ())


def test_json_lines_are_read_too_and_no_more_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{json.dumps(PAIR)}\n{json.dumps(PAIR)}\nnot looked at")

    assert len(read_sharegpt(path, limit=2)) == 2


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (5, 'expected an object with a list "conversations"'),
        ({"id": 1}, 'expected an object with a list "conversations"'),
        ({"conversations": {}}, 'expected an object with a list "conversations"'),
        ({"conversations": ["hello"]}, "message 1 is not an object"),
        (said(("human", "a"), ("parrot", "b")), "message 2 is from 'parrot', not of human"),
        ({"conversations": [{"from": "gpt", "value": 5}]}, "message 1 has no text as its value"),
        ({"conversations": [{"from": ["gpt"], "value": ""}]}, "message 1 is from"),
    ],
)
def test_a_malformed_entry_is_refused_with_file_line_and_reason(
    tmp_path: Path, entry: object, reason: str
) -> None:
    path = tmp_path / "chats.json"
    path.write_text(f"[\n{json.dumps(PAIR)},\n\n{json.dumps(entry)}]\n")

    with pytest.raises(FileError) as refused:
        read_sharegpt(path)

    name = " ('1')" if entry == {"id": 1} else ""
    assert str(refused.value).startswith(f"{path}:4: conversation 2{name}: {reason}")


def test_the_line_is_where_the_entry_begins_in_an_indented_file(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_text('[\n {\n  "conversations": []\n },\n {\n  "id": 1\n }\n]')

    with pytest.raises(FileError, match=r":5: conversation 2 \('1'\): expected an object"):
        read_sharegpt(path)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f"[{json.dumps(PAIR)},\n{{", 2, "is not JSON: "),
        (f"[{json.dumps(PAIR)}\n{json.dumps(PAIR)}]", 2, "expected , or ] behind an entry"),
        (f"[{json.dumps(PAIR)}", 1, "expected , or ] behind an entry"),
        ("[" * 100_000, 1, "is nested too deep"),
        ("[]", None, "has no conversation of a question and a reply"),
        ("", None, "has no conversation of a question and a reply"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(
    tmp_path: Path, text: str, line: int | None, reason: str
) -> None:
    path = tmp_path / "chats.json"
    path.write_text(text)

    with pytest.raises(FileError) as refused:
        read_sharegpt(path)

    assert refused.value.line == line
    assert refused.value.reason.startswith(reason)


def test_counts_have_to_be_as_many_as_texts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        read_sharegpt(written(tmp_path, PAIR)).counted([1])
