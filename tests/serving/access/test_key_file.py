"""The key file: what it means, and that whatever is wrong with it is one line without a secret."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.access import key_file
from serving.access.key_file import (
    FILE_BYTES_MAX,
    KEYS_MAX,
    is_open_to_readers,
    parse_keys,
    read_key_file,
)
from serving.access.key_file_edit import key_text
from serving.access.secret import draw_secret, hash_of
from serving.access.stored_key import Scope, StoredKey
from serving.policy.admission.work import Client, KeyLimits, WorkClass
from tests.serving.access.key_files import ALICE, BATCH, OPS, TEXT, written

HASH = hash_of("a secret")
NIGHT = datetime(2998, 12, 31, 23, tzinfo=UTC)


def test_a_file_says_who_may_what_and_how_much(tmp_path: Path) -> None:
    keys, _ = read_key_file(written(tmp_path))

    alice, batch, ops, past = keys
    assert alice == StoredKey(
        client=Client(
            name="alice",
            work_class=WorkClass.INTERACTIVE,
            limits=KeyLimits(requests_per_minute=60, tokens_per_minute=10_000, concurrent=2),
        ),
        hash=hash_of(ALICE),
        scopes=frozenset({Scope.INFERENCE}),
    )
    assert batch == StoredKey(
        client=Client(name="batch@night", work_class=WorkClass.BATCH),
        hash=hash_of(BATCH),
        scopes=frozenset({Scope.INFERENCE, Scope.CONTROL}),
    )
    assert (ops.hash, ops.scopes, ops.expires) == (hash_of(OPS), {Scope.CONTROL}, NIGHT)
    assert past.is_expired(datetime(2001, 1, 1, tzinfo=UTC))
    assert not past.is_expired(datetime(2000, 12, 31, 23, 59, 59, tzinfo=UTC))
    assert not alice.is_expired(NIGHT)


def test_an_empty_file_holds_no_key() -> None:
    assert parse_keys(b"", where="f") == ()
    assert parse_keys(b"# nobody yet\n", where="f") == ()


def entry(**changes: str) -> str:
    fields = {"name": '"a"', "hash": f'"{HASH}"'} | changes
    return "[[key]]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items() if value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[key]\n", "f=(not read): expected TOML (Expected ']]' at the end of an array"),
        ("name = 'a'\n", "f='name': expected [[key]] tables and nothing else"),
        ("key = 1\n", "f=key: expected [[key]] tables"),
        ("key = [1]\n", "f=key: expected [[key]] tables"),
        (entry(name=""), "f: key 1, name=None: expected 1 to 64 letters"),
        (entry(name='"a b"'), "f: key 1, name='a b': expected 1 to 64 letters"),
        (entry(name=f'"{"a" * 65}"'), f"f: key 1, name='{'a' * 65}': expected 1 to 64 letters"),
        (entry(name='"(key 1)"'), "f: key 1, name='(key 1)': expected 1 to 64 letters"),
        (entry(hash=""), "f: key 1, hash=(not shown): expected sha256: and 64 small hex digits"),
        (entry(hash="1"), "f: key 1, hash=(not shown): expected sha256: and 64 small hex digits"),
        (entry(secret='"s"'), "f: key 1='secret': expected fields among name, hash, scopes,"),
        (entry(scopes="[]"), "f: key 1, scopes=[]: expected one of inference, control"),
        (entry(scopes='["root"]'), "f: key 1, scopes=['root']: expected a list of inference and"),
        (entry(scopes="[[]]"), "f: key 1, scopes=[[]]: expected a list of inference and control"),
        (entry(scopes='"control"'), "f: key 1, scopes='control': expected a list of"),
        (entry(**{"class": '"fast"'}), "f: key 1, class='fast': expected interactive or batch"),
        (entry(**{"class": "1"}), "f: key 1, class=1: expected interactive or batch"),
        (entry(concurrent="0"), "f: key 1, concurrent=0: expected a whole number of at least 1"),
        (entry(concurrent="true"), "f: key 1, concurrent=True: expected a whole number of at"),
        (entry(tokens_per_minute="1.5"), "f: key 1, tokens_per_minute=1.5: expected a whole"),
        (entry(expires='"2027-01-01"'), "f: key 1, expires='2027-01-01': expected a time without"),
        (entry(expires="2027-01-01"), "f: key 1, expires=datetime.date(2027, 1, 1): expected a"),
        (
            entry(expires="2027-01-01T00:00:00"),
            "f: key 1, expires=2027-01-01T00:00:00: expected a time with its zone",
        ),
        (entry() + entry(hash=f'"{hash_of("b")}"'), "f: key 2, name=a: expected a name that no"),
        (entry() + entry(name='"b"'), "f: key 2, hash=(not shown): expected another than that of"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_key_and_the_field(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_keys(text.encode(), where="f")

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(ConfigError, match="line 3"):
        parse_keys(b"# one\n# two\nname = 1x\n", where="f")


@pytest.mark.parametrize("field", ["hash", "secret", "key"])
def test_a_secret_that_was_put_into_the_file_by_mistake_is_not_shown(field: str) -> None:
    secret = draw_secret()
    with pytest.raises(ConfigError) as raised:
        parse_keys(entry(**{field: f'"{secret}"'}).encode(), where="f")

    assert secret not in str(raised.value)
    assert secret not in repr(raised.value.__cause__)


def test_the_hash_is_not_in_what_a_key_prints(tmp_path: Path) -> None:
    (alice, *_), _ = read_key_file(written(tmp_path))

    assert "sha256" not in repr(alice)


def test_a_file_that_is_too_long_or_has_too_many_keys_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=r"at most 1,048,576 bytes"):
        read_key_file(path)
    many = "".join(entry(name=f'"k{i}"', hash=f'"{hash_of(str(i))}"') for i in range(KEYS_MAX + 1))
    with pytest.raises(ConfigError, match=r"1025 keys: expected <= 1024"):
        parse_keys(many.encode(), where="f")
    fewer = many[: many.rindex("[[key]]")]
    assert len(parse_keys(fewer.encode(), where="f")) == KEYS_MAX


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^api_keys=.*none.toml: expected a file to read \(No"):
        read_key_file(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"^api_keys=.*expected a file to read \(Is a directory"):
        read_key_file(tmp_path)
    with pytest.raises(ConfigError, match=r"expected a regular file"):
        read_key_file(Path(os.devnull))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_could_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"expected a file that nobody else can write: chmod"):
        read_key_file(path)


def test_a_file_that_others_can_read_is_read_and_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert not is_open_to_readers(read_key_file(path)[1])
    for mode in (0o640, 0o604):
        path.chmod(mode)
        assert is_open_to_readers(read_key_file(path)[1])


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", fullmatch=True)
counts = st.none() | st.integers(1, 10**12)
times = st.none() | st.datetimes(timezones=st.just(UTC), min_value=datetime(1900, 1, 1))


@st.composite
def stored_keys(draw: st.DrawFn) -> StoredKey:
    limits = KeyLimits(
        requests_per_minute=draw(counts), tokens_per_minute=draw(counts), concurrent=draw(counts)
    )
    work_class = draw(st.sampled_from(WorkClass))
    return StoredKey(
        client=Client(name=draw(names), work_class=work_class, limits=limits),
        hash=hash_of(draw(st.text())),
        scopes=draw(st.frozensets(st.sampled_from(Scope), min_size=1)),
        expires=draw(times),
    )


@given(stored_keys())
def test_a_key_that_is_written_is_read_back(key: StoredKey) -> None:
    assert parse_keys(key_text(key).encode(), where="f") == (key,)


def refused_or_read(data: bytes) -> None:
    message = "f"
    try:
        parse_keys(data, where="f")
    except ConfigError as error:
        message = str(error)
    assert message.startswith("f")
    assert "\n" not in message


@pytest.mark.long
@given(st.binary(max_size=200))
@example(b"\xff")
@example(b"a = " + b"[" * 5_000)
@example(b"a" + b".a" * 5_000 + b" = 1")
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    refused_or_read(data)


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 40), st.text("[]{}\"'=.#\n\\,0a-", max_size=8))
def test_no_change_of_a_right_file_does_more_than_be_refused(at: int, cut: int, put: str) -> None:
    refused_or_read((TEXT[:at] + put + TEXT[at + cut :]).encode())


tomls = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.sampled_from(("name", "hash", "scopes", "class", "concurrent", "expires")), tomls)
def test_no_value_of_a_field_does_more_than_be_refused(field: str, value: object) -> None:
    refused_or_read(entry(**{field: toml(value)}).encode())


def toml(value: object) -> str:
    """A TOML value; nothing becomes an empty list."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            pairs = [f"{toml(name)} = {toml(inner)}" for name, inner in value.items()]
            return "{" + ", ".join(pairs) + "}"
    return "[]"


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_refused_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    os.mkfifo(path, mode=0o600) if kind == "pipe" else path.mkdir()
    with pytest.raises(ConfigError, match=r"^api_keys=.*: expected a (regular )?file"):
        read_key_file(path)


def test_a_file_that_grows_while_it_is_read_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, TEXT.split("# works at night")[0])

    def check_and_write(checked: Path, status: os.stat_result) -> None:
        path.write_text(TEXT)

    monkeypatch.setattr(key_file, "check_owner", check_and_write)
    with pytest.raises(ConfigError, match="expected a file that nobody writes to while it is read"):
        read_key_file(path)
    monkeypatch.undo()
    assert len(read_key_file(path)[0]) == 4
