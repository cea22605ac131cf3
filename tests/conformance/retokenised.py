"""Whether text tokenizes to as many tokens as generated: both bundled weights, two temperatures."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from openai import OpenAI
from tokenizers import Tokenizer

from tests.conformance.conformance_server import MODEL, ConformanceServer
from tests.conformance.outcome import Outcome

ANSWERS = 100  # of each heat
TOKENS = 48
OFF_SHARE_MAX = 0.005  # asked of the bundled model
_HEATS = (0.0, 1.0)
_OPENINGS = ("def chip(core):\n    return", "The capital of the river is", "import ", "9", "\n\n")


def retokenised(server: ConformanceServer, weights: str) -> Outcome:
    """Encode the text of chats and completions and compare with `usage.completion_tokens`."""
    tokenizer = Tokenizer.from_file(str(server.tokenizer / "tokenizer.json"))
    started_s = time.monotonic()
    failures = []
    figures = {}
    cases = 0
    with OpenAI(base_url=f"{server.url}/v1", api_key=server.key, timeout=300) as client:
        for heat in _HEATS:
            with ThreadPoolExecutor(16) as pool:
                pairs = list(
                    pool.map(
                        lambda n, heat=heat: _counts(client, tokenizer, n, heat), range(ANSWERS)
                    )
                )
            used = sum(each for each, _ in pairs)
            # One answer's tokens too many do not make up for another's too few.
            off = sum(abs(counted - each) for each, counted in pairs)
            off_share = off / used
            figures[f"tokens off at temperature {heat:g}, %"] = 100 * off_share
            figures[f"tokens at temperature {heat:g}"] = used
            cases += ANSWERS
            if off_share > OFF_SHARE_MAX:
                failures.append(f"temperature {heat:g}: {off} tokens off of {used}")
    return Outcome(
        client=f"retokenised {weights}",
        version=httpx.get(f"{server.url}/version").json()["version"],
        cases=cases,
        failures=tuple(failures),
        seconds=time.monotonic() - started_s,
        figures=figures,
    )


def _counts(client: OpenAI, tokenizer: Tokenizer, number: int, heat: float) -> tuple[int, int]:
    opening = f"{_OPENINGS[number % len(_OPENINGS)]}{number}"
    given = {"model": MODEL, "temperature": heat, "seed": number, "max_tokens": TOKENS}
    extra = {"ignore_eos": True, "skip_special_tokens": False}
    if number % 2:
        completion = client.completions.create(prompt=opening, extra_body=extra, **given)
        text, usage = completion.choices[0].text, completion.usage
    else:
        messages = [{"role": "user", "content": opening}]
        chat = client.chat.completions.create(messages=messages, extra_body=extra, **given)
        text, usage = chat.choices[0].message.content or "", chat.usage
    assert usage is not None
    return usage.completion_tokens, len(tokenizer.encode(text, add_special_tokens=False).ids)
