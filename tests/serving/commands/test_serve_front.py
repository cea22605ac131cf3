"""`serve --front`: what a server behind smg does not have is one line before anything starts."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.commands.gateway_arguments import gateway_options
from serving.commands.serve_arguments import resolve_arguments
from serving.commands.serve_front import resolve_front
from serving.engine.deployment import resolve_deployment
from serving.process.front_program import PROGRAM_VARIABLE, FrontProgram
from tests.serving.access.key_files import written
from tests.serving.commands.serve_flags import parse

FAST = "--model qwen3-30b-a3b --weights none --engine fast --front smg"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what looks like smg, and a key file."""
    monkeypatch.chdir(tmp_path)
    for name in ("smg", "python"):
        (tmp_path / name).touch(mode=0o700)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(tmp_path / "smg"))
    written(tmp_path)
    return tmp_path


def front_of(words: str, directory: Path) -> FrontProgram | None:
    args = parse(*words.split())
    settings, weights_dir = resolve_arguments(args, {})
    gateway = gateway_options(args, {})
    deployment = resolve_deployment(settings, weights_dir)
    make = resolve_front(args, gateway, deployment, seats=3)
    return None if make is None else make(directory)


def test_it_has_the_server_s_address_names_keys_and_limits(made: Path) -> None:
    front = front_of(
        f"{FAST} --host ::1 --front-port 7 --front-metrics-port 8 --api-key sk-{'a' * 20} "
        "--served-model-name one two --chips 4 --queue-requests 5 --max-body-bytes 9 "
        "--request-timeout 10 --drain-timeout 11",
        made,
    )

    assert front is not None
    assert (front.host, front.port, front.metrics_port) == ("::1", 7, 8)
    assert front.requests_max == 4 * 3 + 5
    assert (front.served, front.keys) == (["one", "two"], (f"sk-{'a' * 20}",))
    assert (front.body_bytes_max, front.request_wall_s_max, front.drain_wall_s_max) == (9, 10, 11)


def test_it_calls_the_model_as_the_server_does_and_is_not_there_unasked(made: Path) -> None:
    front = front_of(FAST, made)

    assert front is not None
    assert front.served == ["qwen3-30b-a3b"]
    assert front_of("", made) is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--front smg", r"engine=default: expected fast with --front"),
        (f"{FAST} --replicas 2", r"replicas=2: expected none with --front"),
        (f"{FAST} --api-server-count 2", r"api_server_count=2: expected 1 with --front"),
        (f"{FAST} --api-keys keys.toml", r"api_keys=.*: expected --api-key with --front"),
        (f"{FAST} --served-model-name /etc/a", r"served_model_name=/etc/a: expected a name"),
        (f"{FAST} --front-port 8000", r"front_port=8000: expected another port than --port"),
        (f"{FAST} --served-model-name", r"served_model_name=: expected at least one name"),
        (f"{FAST} --served-model-name .", r"served_model_name=\.: expected a name"),
        (f"{FAST} --chat-template no.jinja", r"chat_template=no.jinja: expected a file"),
        (f"{FAST} --tokenizer org/none", r"tokenizer=org/none: expected a folder or file"),
        (f"{FAST} --tool-call-parser=hermes", r"tool_call_parser=hermes: expected none with"),
        (f"{FAST} --reasoning_parser qwen3", r"reasoning_parser=qwen3: expected none with"),
        (f"{FAST} --generation-config vllm", r"generation_config=vllm: expected none with"),
        (f"{FAST} --day-night manual", r"day_night=manual: expected none with --front"),
    ],
)
def test_what_it_does_not_have_is_refused(made: Path, words: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        front_of(words, made)


def test_an_empty_name_is_refused(made: Path) -> None:
    args = parse(*FAST.split(), "--served-model-name", "")
    settings, weights_dir = resolve_arguments(args, {})
    deployment = resolve_deployment(settings, weights_dir)

    with pytest.raises(ConfigError, match="served_model_name=: expected at least one name"):
        resolve_front(args, gateway_options(args, {}), deployment, seats=3)


def test_it_gets_the_template_and_the_tokenizer(made: Path) -> None:
    (made / "words.jinja").touch()

    front = front_of(f"{FAST} --chat-template words.jinja --tokenizer {made}", made)

    assert front is not None
    words = front.command()
    assert words[words.index("--chat-template") + 1] == str(made / "words.jinja")
    assert words[words.index("--tokenizer-path") + 1] == str(made)
