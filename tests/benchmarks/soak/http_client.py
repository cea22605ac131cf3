"""The soak's HTTP client."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.benchmarks.soak.asks import Ask, End, Ending, Fate, Fault

MODEL = "small-moe"
WRONG = (400, 401, 403, 404, 408, 413, 422)
TOO_LATE_S = 300.0


class HttpClient:
    def __init__(self, url: str, *, keys: Sequence[str], body_bytes_max: int) -> None:
        self._url, self._keys, self._body_bytes_max = url, keys, body_bytes_max
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=TOO_LATE_S),
        )

    async def ask(self, ask: Ask) -> Ending:
        """Send it, and stay as long as its fate says."""
        began_s = time.monotonic()
        stays_s = TOO_LATE_S if ask.fate is Fate.STAYS else ask.leaves_after_s
        begun = asyncio.Event()
        try:
            async with asyncio.timeout(stays_s):
                end, reason = await self._ask(ask, begun)
        except TimeoutError:
            stayed = ask.fate is Fate.STAYS
            end, reason = (End.BROKEN, "no answer") if stayed else (End.LEFT, "")
        except aiohttp.ClientError as error:
            end, reason = End.BROKEN, f"{type(error).__name__}: {error}"
        wall_s = time.monotonic() - began_s
        return Ending(end=end, reason=reason, begun=begun.is_set(), wall_s=wall_s)

    async def _ask(self, ask: Ask, begun: asyncio.Event) -> tuple[End, str]:
        path = "/v1/chat/completions" if ask.chats else "/v1/completions"
        async with self._session.post(
            self._url + path, data=self._body(ask), headers=self._headers(ask)
        ) as answer:
            if answer.status != 200:
                return _refusal(ask, answer.status, answer.headers, await answer.text())
            if ask.fault is not Fault.NONE:
                return End.BROKEN, f"{ask.fault} was answered"
            if ask.streams:
                return await _read_stream(answer, begun)
            usage = (await answer.json())["usage"]
            made, wanted = usage["completion_tokens"], ask.new_tokens * ask.sequences
            if made != wanted:
                return End.BROKEN, f"{made} of {wanted} tokens"
            return End.FINISHED, ""

    def _headers(self, ask: Ask) -> dict[str, str]:
        headers = {"content-type": "application/json", "x-request-id": ask.name}
        if ask.batch:
            headers["x-ultraserve-class"] = "batch"
        if ask.fault is Fault.UNKNOWN_KEY:
            headers["authorization"] = "Bearer sk-nobody-has-this-one"
        elif ask.fault is not Fault.NO_KEY:
            headers["authorization"] = f"Bearer {self._keys[ask.key]}"
        return headers

    def _body(self, ask: Ask) -> bytes:
        if ask.fault is Fault.UNREADABLE:
            return b'{"model": "small-moe", "prompt": ['
        if ask.fault is Fault.TOO_BIG:
            return b'{"prompt": "' + b"a" * self._body_bytes_max + b'"}'
        prompt = ask.sent_prompt
        body: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": ask.new_tokens,
            "ignore_eos": True,
            "n": ask.sequences,
            "seed": ask.seed,
            "temperature": 7.5 if ask.fault is Fault.BAD_PARAMETER else 1.0,
            "stream": ask.streams,
        }
        if ask.streams:
            body["stream_options"] = {"include_usage": True}
        if ask.chats:
            body["messages"] = [{"role": "user", "content": " ".join(map(str, prompt))}]
        else:
            body["prompt"] = prompt
        return json.dumps(body).encode()

    async def close(self) -> None:
        await self._session.close()


async def _read_stream(answer: aiohttp.ClientResponse, begun: asyncio.Event) -> tuple[End, str]:
    """Read events to the last; a begun stream may still end with an error."""
    last = b""
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        last = line.removeprefix(b"data:").strip()
        if last.startswith(b'{"error"'):
            error = json.loads(last)["error"]
            return End.BROKEN, f"in the stream: {error.get('code')} {error.get('message')}"
        begun.set()
    return (End.FINISHED, "") if last == b"[DONE]" else (End.BROKEN, "a stream without its end")


def _refusal(ask: Ask, status: int, headers: Any, text: str) -> tuple[End, str]:
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return End.BROKEN, f"{status}: {text[:200]}"
    if status in (429, 503):
        if "retry-after" not in headers:
            return End.BROKEN, f"{status} {error['code']} without retry-after"
        return End.REFUSED, str(error["code"])
    if status in WRONG and ask.fault is not Fault.NONE:
        return End.INVALID, f"{ask.fault} {status}"
    return End.BROKEN, f"{status}: {error['message'][:200]}"
