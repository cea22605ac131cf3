"""Variables that open vLLM or Ray to strangers: each is refused, and means what it says."""

import os

import pytest
from vllm import envs

from emulator.actors.private_ray import refuse_open_ray
from emulator.errors import ConfigError
from serving.access.process_listing import refuse_unsafe_environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_SERVER_DEV_MODE", "1"),
        ("VLLM_SERVER_DEV_MODE", "yes"),
        ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1"),
        ("VLLM_USE_RUST_FRONTEND", "1"),
        ("RAY_AUTH_MODE", "disabled"),
        ("RAY_AUTH_MODE", "k8s"),
        ("RAY_AUTH_MODE", ""),
    ],
)
def test_what_opens_a_door_is_refused_and_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}={value}: expected unset"):
        refuse_unsafe_environment({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_SERVER_DEV_MODE", "0"),
        ("VLLM_ALLOW_INSECURE_SERIALIZATION", ""),
        ("RAY_AUTH_MODE", "token"),
        ("RAY_AUTH_MODE", "TOKEN"),
    ],
)
def test_what_opens_none_is_let_be(name: str, value: str) -> None:
    refuse_unsafe_environment({name: value})


@pytest.mark.parametrize(
    "mode", [None, "", " ", "token", "TOKEN", "Token", " token", "disabled", "k8s", "0"]
)
def test_the_engine_s_own_look_at_ray_agrees(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    told = []
    for look in (lambda: refuse_unsafe_environment(os.environ), refuse_open_ray):
        try:
            look()
        except ConfigError as error:
            told.append(str(error))
        else:
            told.append("")
    assert told[0] == told[1]
    assert (told[0] == "") == (mode is None or mode.lower() == "token")


def test_the_words_that_are_refused_are_vllm_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "VLLM_SERVER_DEV_MODE",
        "VLLM_ALLOW_INSECURE_SERIALIZATION",
        "VLLM_USE_RUST_FRONTEND",
    ):
        monkeypatch.setenv(name, "1")
        assert envs.environment_variables[name]() is True
        monkeypatch.setenv(name, "0")
        assert envs.environment_variables[name]() is False
