"""What cannot be served is UNAVAILABLE with its reason, before a message is read; limits count."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from tests.serving.server.gateway.grpc.served_grpc import ServedGrpc, asking, failure, told
from tests.serving.server.gateway.grpc.test_grpc_generate import run

Code = grpc.StatusCode
SECRET = "us-0123456789012345678901234567890123456789"


def no_rank_up() -> Refused:
    return Refused(RefusalReason.NO_RANK_UP, "no rank is up", retry_after_s=5.0, rate=RateState())


def test_a_call_that_nobody_would_serve_is_unavailable() -> None:
    async def check(at: ServedGrpc) -> None:
        at.ready.refused = no_rank_up()
        told_of = await failure(at.stub.Generate(asking()))

        assert (told_of.code, told_of.reason) == (Code.UNAVAILABLE, "NO_RANK_UP")
        assert told_of.details["RetryInfo"].retry_delay.seconds == 5
        assert at.core.added == []
        at.ready.refused = None
        assert await told(at.stub.Generate(asking()))

    run(check)


def test_a_call_that_the_engine_fails_at_says_why() -> None:
    async def check(at: ServedGrpc) -> None:
        at.ready.failed = no_rank_up()
        at.core.scheduler.ranks_up[:] = False
        told_of = await failure(at.stub.Generate(asking()))

        assert (told_of.code, told_of.reason) == (Code.UNAVAILABLE, "NO_RANK_UP")

    run(check)


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[key]]\nname = "alice"\nhash = "{hash_of(SECRET)}"\n'
        "tokens_per_minute = 2000\nconcurrent = 4\n"
    )
    path.chmod(0o600)
    return KeyRing(key_file=path)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"n": 5, "max_tokens": 2}, "CONCURRENT"),
        ({"n": 4, "max_tokens": 500}, "TOKENS_PER_MINUTE"),
    ],
)
def test_sequences_count(keys: KeyRing, asked: dict[str, Any], reason: str) -> None:
    async def check(at: ServedGrpc) -> None:
        metadata = [("authorization", f"Bearer {SECRET}")]
        told_of = await failure(at.stub.Generate(asking(**asked), metadata=metadata))

        assert (told_of.code, told_of.reason) == (Code.RESOURCE_EXHAUSTED, reason)
        assert at.core.added == []
        fits = asking(n=4, max_tokens=2)
        assert await told(at.stub.Generate(fits, metadata=metadata))

    run(check, keys=keys)
