"""Batches of OpenAI's client before vLLM's own app: files, answers, ends, restarts."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import openai
import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.day_night.night_work import NightShare
from serving.server.batch import batch_store
from serving.server.batch.batch_record import StoredBatch
from tests.serving.server.batch.served_batch import BatchServer, batch_server, chat, jsonl, until
from tests.serving.server.gateway.http.served_http import MODEL

pytestmark = pytest.mark.long

SECRETS = ("us-0123456789012345678901234567890123456789", "us-" + "9" * 40)
DAY = NightShare(may_run=False, held_groups=0, words="it is day")
NIGHT = NightShare(may_run=True, held_groups=0, words="it is night")


def run(
    directory: Path, use: Callable[[BatchServer], Coroutine[Any, Any, None]], **given: Any
) -> None:
    """Serve, use, and see that nothing is left under way."""

    async def live() -> None:
        async with batch_server(directory, **given) as server:
            await use(server)
            server.http.core.free.set()
        await server.http.is_empty()

    asyncio.run(asyncio.wait_for(live(), 60.0))


def test_a_batch_is_answered_in_a_file_of_lines(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        lines = [chat(f"request-{number}") for number in range(20)]
        lines.append(chat("too long", max_tokens=-1))
        batch = await server.ended(await server.create(lines))
        assert batch.status == "completed"
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
        assert batch.expires_at - batch.created_at == 86_400
        output = await server.lines(batch.output_file_id)
        assert {*output} == {f"request-{number}" for number in range(20)}
        first = output["request-0"]
        assert (first["error"], first["response"]["status_code"]) == (None, 200)
        assert first["response"]["body"]["usage"]["completion_tokens"] == 3
        failed = (await server.lines(batch.error_file_id))["too long"]
        assert failed["response"]["status_code"] == 400
        assert "max_tokens" in failed["response"]["body"]["error"]["message"]
        listed = [file.purpose async for file in server.client.files.list()]
        assert listed == ["batch_output", "batch_output", "batch"]

    run(tmp_path, use)


def test_wrong_lines_are_told_and_nothing_runs(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        lines = [chat("a"), chat("a"), {**chat("b"), "url": "/v1/embeddings"}, chat("c")]
        batch = await server.ended(await server.create(lines))
        assert batch.status == "failed"
        assert [(error.line, error.code) for error in batch.errors.data] == [
            (2, "duplicate_custom_id"),
            (3, "invalid_request"),
        ]
        assert batch.errors.data[1].message == (
            'url: expected /v1/chat/completions, the batch\'s endpoint, got "/v1/embeddings"'
        )
        assert (batch.output_file_id, server.http.core.added) == (None, [])

    run(tmp_path, use)


def test_a_stopped_server_s_batch_goes_on_with_what_was_not_answered(tmp_path: Path) -> None:
    lines = [chat(str(number)) for number in range(40)]
    made: list[str] = []

    async def begin(server: BatchServer) -> None:
        made.append(await server.create(lines))
        (live,) = server.runner._live.values()
        await until(lambda: live.journal is not None and len(live.journal.completed) >= 5)
        server.http.core.free.clear()  # what is under way stays so until the server's end
        await until(lambda: live.under_way)

    async def go_on(server: BatchServer) -> None:
        before = await server.client.batches.retrieve(made[0])
        assert before.status == "in_progress"
        batch = await server.ended(made[0])
        assert (batch.status, batch.request_counts.completed) == ("completed", 40)
        output = await server.lines(batch.output_file_id)
        assert {*output} == {line["custom_id"] for line in lines}
        assert len(server.http.core.added) <= 35  # no answer of the first server was made again

    run(tmp_path, begin)
    run(tmp_path, go_on)


def test_a_cancelled_batch_keeps_its_answers(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        name = await server.create([chat(str(number)) for number in range(30)])
        (live,) = server.runner._live.values()
        await until(lambda: live.journal is not None and len(live.journal.completed) >= 3)
        server.http.core.free.clear()
        assert (await server.client.batches.cancel(name)).status == "cancelling"
        batch = await server.ended(name)
        assert batch.status == "cancelled"
        output = await server.lines(batch.output_file_id)
        errors = await server.lines(batch.error_file_id)
        assert len(output) + len(errors) == batch.request_counts.total == 30
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
        with pytest.raises(openai.ConflictError, match="cannot take the event cancel"):
            await server.client.batches.cancel(name)

    run(tmp_path, use)


def test_an_expired_batch_has_an_error_for_each_request_without_an_answer(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        server.http.core.free.clear()
        name = await server.create([chat(str(number)) for number in range(10)], window="30m")
        await until(lambda: server.http.core.added)
        server.wall.ahead_s = 1_801.0
        batch = await server.ended(name)
        assert (batch.status, batch.request_counts.failed) == ("expired", 10)
        assert batch.expired_at >= batch.expires_at
        errors = await server.lines(batch.error_file_id)
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
        assert {line["response"] for line in errors.values()} == {None}

    run(tmp_path, use)


def test_after_its_deadline_a_batch_sends_nothing_and_ends_expired_whatever_fails(
    tmp_path: Path,
) -> None:
    async def use(server: BatchServer) -> None:
        put = server.store.put
        died: list[str] = []

        def dies(batch: StoredBatch) -> None:
            if batch.status.is_over and not died:
                died.append(batch.id)
                raise OSError("the disk is full")
            put(batch)

        server.store.put = dies  # type: ignore[method-assign]
        server.http.core.free.clear()
        name = await server.create([chat(str(number)) for number in range(30)], window="30m")
        (live,) = server.runner._live.values()
        await until(lambda: len(server.http.core.added) == 4)  # the others wait for a turn
        assert live.pending
        server.wall.ahead_s = 1_801.0
        await until(lambda: died)
        assert server.store.batches[name].is_expiring
        server.wall.ahead_s += 11.0
        batch = await server.ended(name)
        assert (batch.status, batch.request_counts.failed) == ("expired", 30)
        assert len(server.http.core.added) == 4
        assert len(await server.lines(batch.error_file_id)) == 30

    run(tmp_path, use)


def test_by_day_batches_wait_unless_their_deadline_is_near(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        server.runner.share(DAY)
        name = await server.create([chat(str(number)) for number in range(10)])
        await until(lambda: server.runner.demand().requests == 10)
        await asyncio.sleep(0.1)
        assert server.http.core.added == []
        server.wall.ahead_s = 0.76 * 86_400  # no pace is measured: the last quarter is near
        assert server.runner.demand().due_requests == 10
        assert (await server.ended(name)).status == "completed"

    run(tmp_path, use)


def test_at_dawn_requests_without_a_turn_are_taken_back(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        server.http.core.free.clear()
        server.runner.share(NIGHT)
        name = await server.create([chat(str(number)) for number in range(10)])
        (live,) = server.runner._live.values()
        await until(lambda: len(live.under_way) == 6)  # as many as seats
        server.runner.share(DAY)
        await until(lambda: len(live.under_way) == 4)  # a quarter of the seats is interactive's
        assert not any(sent.waits for sent in live.under_way.values())
        server.http.core.free.set()
        await until(lambda: not live.under_way)
        assert len(live.pending) == 6
        server.runner.share(NIGHT)
        assert (await server.ended(name)).request_counts.completed == 10

    run(tmp_path, use)


def test_interactive_requests_go_first(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        server.http.core.free.clear()
        name = await server.create([chat(str(number)) for number in range(12)])
        await until(lambda: server.http.core.added)
        asked = asyncio.create_task(
            server.client.completions.create(model=MODEL, prompt="hello", max_tokens=2)
        )
        await until(lambda: server.http.admission.in_flight == 7)
        server.http.core.free.set()
        await asked
        assert (await server.client.batches.retrieve(name)).status == "in_progress"
        await server.ended(name)

    run(tmp_path, use)


def test_a_key_has_its_own_files_and_batches_alone(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        name = await server.create([chat("a")])
        file_id = (await server.client.files.list()).data[-1].id
        stranger = server.http.client(SECRETS[1], max_retries=0)
        for asked in (
            stranger.files.retrieve(file_id),
            stranger.files.content(file_id),
            stranger.files.delete(file_id),
            stranger.batches.retrieve(name),
            stranger.batches.cancel(name),
            stranger.batches.create(
                input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError, match="of this key"):
                await asked
        assert (await stranger.files.list()).data == []
        assert (await stranger.batches.list()).data == []
        nobody = server.http.client("us-wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await nobody.files.list()
        assert (await server.ended(name)).status == "completed"

    run(tmp_path, use, key=SECRETS[0], keys=KeyRing(key_hashes=[*map(hash_of, SECRETS)]))


def test_lists_are_given_page_by_page_the_newest_first(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        made = [await server.create([chat(str(number))]) for number in range(5)]
        first = await server.client.batches.list(limit=2)
        assert [batch.id for batch in first.data] == made[:2:-1]
        assert first.has_more
        listed = [batch.id async for batch in server.client.batches.list(limit=2)]
        assert listed == made[::-1]
        with pytest.raises(openai.BadRequestError, match="limit=0: expected 1 to 100"):
            await server.client.batches.list(limit=0)
        for name in made:
            await server.ended(name)

    run(tmp_path, use)


def test_a_file_that_a_batch_reads_stays_until_it_is_over(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        server.http.core.free.clear()
        name = await server.create([chat("a")])
        (file,) = (await server.client.files.list()).data
        with pytest.raises(openai.ConflictError, match=f"{file.id} is the input of {name}"):
            await server.client.files.delete(file.id)
        server.http.core.free.set()
        await server.ended(name)
        assert (await server.client.files.delete(file.id)).deleted
        assert not [*tmp_path.rglob(f"{file.id}*")]

    run(tmp_path, use)


def test_sizes_are_bounded_and_names_are_the_server_s_own(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        with pytest.raises(openai.APIStatusError, match="larger than") as large:
            await server.upload(b"x" * 200_000)
        assert large.value.status_code == 413
        climbing = await server.client.files.create(
            file=("../../etc/passwd", jsonl([chat("a")])), purpose="batch"
        )
        assert climbing.filename == "../../etc/passwd"
        kept = {path.name for path in (tmp_path / "files").iterdir()}
        assert kept == {f"{climbing.id}.json", f"{climbing.id}.data"}
        await server.upload(b"x" * 1_500)
        with pytest.raises(openai.APIStatusError, match="may have 2,000 bytes together"):
            await server.upload(b"x" * 1_500)
        with pytest.raises(openai.BadRequestError, match="purpose=assistants: expected batch"):
            await server.client.files.create(file=b"x", purpose="assistants")
        assert len([*tmp_path.rglob("*.data")]) == 2

    run(tmp_path, use, batch_file_bytes=100_000, batch_key_bytes=2_000)


def test_malformed_uploads_and_unknown_paths_are_one_line(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        form = "multipart/form-data; boundary=b"
        field = b"--b\r\nContent-Disposition: form-data; name=%s\r\n\r\nbatch\r\n--b--\r\n"
        for kind, body in (
            ("application/json", b"{}"),
            ("multipart/form-data", b"--b\r\n"),
            (form, b"no part at all"),
            (form, b"--b\r\nX" + b"y" * 100_000),
            (form, field % b"other"),
            (form, field % b"purpose"),
        ):
            headers = {"content-type": kind}
            answer = await server.http.http.post("/v1/files", content=body, headers=headers)
            assert answer.status_code == 400, body[:100]
            assert "\n" not in answer.json()["error"]["message"]
        for method, path, status in (
            ("PUT", "/v1/files", 405),
            ("POST", "/v1/files/file-1", 405),
            ("GET", "/v1/files/file-1/list", 404),
            ("POST", "/v1/batches/batch_1/ID", 404),
            ("GET", "/v1/files/file-1/content/more", 404),
            ("GET", "/v1/files/%2e%2e%2fbatches/content", 404),
        ):
            answer = await server.http.http.request(method, path)
            assert answer.status_code == status, path
            assert answer.json()["error"]["message"]
        assert [*(tmp_path / "files").iterdir()] == []

    run(tmp_path, use, batch_file_bytes=1_000_000)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint=/v1/embeddings: expected /v1/chat/completions"),
        ({"completion_window": "8d"}, "completion_window=8d: expected 24h"),
        ({"completion_window": "0" * 20 + "1h"}, "expected 24h"),
        ({"completion_window": "soon"}, "completion_window=soon: expected 24h"),
        ({"metadata": {"a": "b" * 513}}, "metadata=more: expected 16 entries"),
        ({"input_file_id": "file-1"}, "no file 'file-1' of this key"),
    ],
)
def test_a_wrong_batch_is_refused_in_one_line(
    tmp_path: Path, given: dict[str, Any], line: str
) -> None:
    async def use(server: BatchServer) -> None:
        file_id = await server.upload(jsonl([chat("a")]))
        body: dict[str, Any] = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        with pytest.raises(openai.APIStatusError) as refused:
            await server.client.batches.create(**body | given)
        assert line in refused.value.message
        assert refused.value.status_code in (400, 404)

    run(tmp_path, use)


def test_what_is_beyond_its_key_s_limits_waits_and_holds_no_group_for_long(
    tmp_path: Path,
) -> None:
    key_file = tmp_path / "keys.toml"
    key_file.write_text(
        f'[[key]]\nname = "alice"\nhash = "{hash_of(SECRETS[0])}"\ntokens_per_minute = 100\n'
    )
    key_file.chmod(0o600)

    async def use(server: BatchServer) -> None:
        name = await server.create([chat("too much", max_tokens=400), chat("fits")])
        await until(lambda: server.runner.demand().requests == 1)
        assert server.runner.seen(server.store.batches[name]).completed == 1
        server.wall.ahead_s = 601.0
        assert server.runner.demand().requests == 0
        assert (await server.client.batches.retrieve(name)).status == "in_progress"
        key_file.write_text("")  # a key that has gone sends nothing more
        await server.client.close()
        await until(lambda: server.runner._client_of("alice") is None)
        server.wall.ahead_s = 86_401.0
        await until(lambda: server.store.batches[name].status == "expired")
        assert server.store.batches[name].completed == 1

    (tmp_path / "batches").mkdir()
    run(tmp_path / "batches", use, key=SECRETS[0], keys=KeyRing(key_file=key_file))


def test_a_batch_published_before_a_death_is_published_the_same_again(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        put = server.store.put
        died: list[str] = []

        def dies(batch: StoredBatch) -> None:
            if batch.status.is_over and not died:
                died.append(batch.id)
                raise OSError("the server is gone")
            put(batch)

        server.store.put = dies  # type: ignore[method-assign]
        name = await server.create([chat("a"), chat("b", max_tokens=-1)])
        await until(lambda: died)
        assert len(server.store.files) == 3  # its answers are files, and it is not over
        server.wall.ahead_s = 11.0
        batch = await server.ended(name)
        assert (batch.status, len(server.store.files)) == ("completed", 3)
        assert {*await server.lines(batch.output_file_id)} == {"a"}
        assert {*await server.lines(batch.error_file_id)} == {"b"}

    run(tmp_path, use)


def test_many_batches_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "KEY_LIVE_BATCHES_MAX", 2)

    async def use(server: BatchServer) -> None:
        server.runner.share(DAY)
        made = [await server.create([chat("a")]) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 batches of this key are not over"):
            await server.create([chat("a")])
        server.runner.share(NIGHT)
        for name in made:
            await server.ended(name)
        await server.ended(await server.create([chat("a")]))

    run(tmp_path, use)
