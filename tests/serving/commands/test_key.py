"""`ultraserve key`: a secret is shown once, and what it prints of a file holds none."""

import json
from pathlib import Path

import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.main import main
from serving.policy.admission.work import KeyLimits, WorkClass
from tests.serving.access.key_files import written


def test_a_key_s_secret_goes_to_stdout_and_opens_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.toml"
    flags = "--scope inference --scope control --class batch --requests-per-minute 6 --concurrent 2"
    assert main(["key", "create", "alice", "--file", str(path), *flags.split()]) == 0

    secret, told = capsys.readouterr()
    secret = secret.removesuffix("\n")
    assert secret not in told
    assert secret not in path.read_text()
    assert hash_of(secret) in path.read_text()
    ring = KeyRing(key_file=path)
    client = ring.client_of(secret)
    assert client is not None
    assert (client.name, client.work_class) == ("alice", WorkClass.BATCH)
    assert client.limits == KeyLimits(requests_per_minute=6, concurrent=2)
    assert ring.admits_control(secret)


def test_a_key_opens_inference_alone_unless_more_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.toml"
    main(["key", "create", "alice", "--file", str(path)])
    secret = capsys.readouterr().out.strip()
    ring = KeyRing(key_file=path)

    assert ring.client_of(secret) is not None
    assert not ring.admits_control(secret)


def test_a_list_shows_who_and_what_and_no_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path))
    assert main(["key", "list", "--file", path]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["name", "opens"],
        ["alice", "inference"],
        ["batch@night", "control"],
        ["ops", "control"],
        ["past", "inference"],
    ]
    assert shown.splitlines()[1].split()[2:] == ["interactive", "60", "10,000", "2", "never"]
    assert shown.splitlines()[-1].endswith("2001-01-01T00:00+00:00 (past)")
    main(["key", "list", "--file", path, "--json"])
    listed = capsys.readouterr().out
    assert [key["expired"] for key in json.loads(listed)] == [False, False, False, True]
    assert "sha256" not in f"{shown}{listed}"
    main(["key", "list", "--file", str(written(tmp_path, ""))])
    assert capsys.readouterr().out == "no keys\n"


def test_a_revoked_key_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path))
    assert main(["key", "revoke", "alice", "--file", path]) == 0
    assert main(["key", "revoke", "alice", "--file", path]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "alice is revoked"
    assert told[1].startswith("ultraserve key: name=alice: expected a key of ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("create a b", "name=a b: expected 1 to 64 letters"),
        ("create alice", "name=alice: expected a name that"),
        ("create a --concurrent 0", "concurrent=0: expected at least 1"),
        ("create a --expires soon", "expires=soon: expected a time such as"),
        ("create a --expires 2027-01-01", "expires=2027-01-01T00:00:00: expected a time with its"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    before = path.read_text()
    action, name, *rest = flags.replace("a b", "a\0b").split()
    assert main(["key", action, name.replace("\0", " "), *rest, "--file", str(path)]) == 2

    shown, told = capsys.readouterr()
    assert shown == ""
    assert told.startswith(f"ultraserve key: {message}".replace("name=a b", "name='a b'"))
    assert told.count("\n") == 1
    assert path.read_text() == before
