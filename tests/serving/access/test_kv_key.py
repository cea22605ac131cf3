"""The key between engines: one file of a user's on a machine, one that is given beyond it."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.access.kv_key import read_kv_key


def test_the_first_engine_draws_the_key_and_the_next_ones_share_it(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    keys = {read_kv_key(None, host="localhost", environment=environment) for _ in range(3)}
    (key,) = keys
    assert len(key) >= 32
    (file,) = (tmp_path / "ultraserve").iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_a_port_for_other_machines_wants_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_key_file=\(none\).*10\.0\.0\.1"):
        read_kv_key(None, host="10.0.0.1", environment={"XDG_RUNTIME_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [("k" * 31, 0o600, "at least 32 characters"), ("k" * 40, 0o644, "chmod 600")],
)
def test_a_file_that_is_short_or_shared_is_refused_by_its_field(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=words) as told:
        read_kv_key(str(file), host="10.0.0.1", environment={})
    assert told.value.field == "kv_key_file"
    file.write_text("k" * 40)
    file.chmod(0o600)
    assert read_kv_key(str(file), host="10.0.0.1", environment={}) == b"k" * 40
