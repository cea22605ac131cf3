"""The honest client: a closed loop per protocol, with a key, in its own process.

`python -m tests.attacks.honest`, the target on stdin, writes a line of JSON per request: protocol,
begin and end on the machine's monotonic clock, and status. Each request has its own connection, so
that refused connections show too. `Honest` reads the lines.
"""

import http.client
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Self

from tests.attacks.target import HOST, Target

PROTOCOLS: Final = ("http", "grpc")
TOKENS: Final = 8
WAIT_S: Final = 10.0
"""A request that takes longer counts as unanswered."""

ANSWERED: Final = "200"


@dataclass(frozen=True, slots=True)
class Sample:
    protocol: str
    began_s: float
    ended_s: float
    status: str

    @property
    def latency_s(self) -> float:
        """Infinite for a refused or broken request."""
        return self.ended_s - self.began_s if self.status == ANSWERED else math.inf


class Honest:
    """A context that runs the honest client and reads its output."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._samples: dict[str, deque[Sample]] = {
            protocol: deque(maxlen=100_000) for protocol in PROTOCOLS
        }

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.honest"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(self._target)))
        self._process.stdin.close()
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sample = Sample(**json.loads(line))
            self._samples[sample.protocol].append(sample)

    @property
    def pid(self) -> int:
        return self._process.pid

    def between(self, protocol: str, began_s: float, ended_s: float) -> list[Sample]:
        """The requests under way in that time, waiting for unfinished ones.

        One that does not end is an unanswered sample.
        """
        samples = self._samples[protocol]
        until_s = ended_s + WAIT_S + 5.0
        while not (samples and samples[-1].ended_s >= ended_s) and time.monotonic() < until_s:
            time.sleep(0.02)  # polls another process
        found = [each for each in list(samples) if each.ended_s > began_s]
        if not (samples and samples[-1].ended_s >= ended_s):
            found.append(Sample(protocol, ended_s, ended_s, "none"))
        return [each for each in found if each.began_s < ended_s or each.status == "none"]

    @staticmethod
    def usual_s(samples: list[Sample]) -> float:
        """The median latency: the time between two requests of an undisturbed loop."""
        answered = [each.latency_s for each in samples if each.status == ANSWERED]
        return statistics.median(answered) if answered else 0.05


def over_http(target: Target) -> Callable[[], str]:
    tls = target.tls("http/1.1")
    body = json.dumps(
        {"model": target.model, "prompt": [5, 6, 7], "max_tokens": TOKENS, "ignore_eos": True}
    )
    headers = {"authorization": target.authorization, "content-type": "application/json"}

    def ask() -> str:
        if tls is None:
            connection = http.client.HTTPConnection(HOST, target.http_port, timeout=WAIT_S)
        else:
            connection = http.client.HTTPSConnection(
                HOST, target.http_port, timeout=WAIT_S, context=tls
            )
        try:
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            answer.read()
            return str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    return ask


def over_grpc(target: Target) -> Callable[[], str]:
    """One generation of the engine's service, on its own channel."""
    import grpc  # noqa: PLC0415 — the runner, which reads `Honest` alone, starts without it
    from smg_grpc_proto import vllm_engine_pb2 as pb  # noqa: PLC0415
    from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc  # noqa: PLC0415

    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    credentials = None
    if target.authority:
        with open(target.authority, "rb") as file:  # noqa: PTH123
            credentials = grpc.ssl_channel_credentials(file.read())
    metadata = (("authorization", target.authorization),)
    numbers = iter(range(10**9))

    def ask() -> str:
        address = f"{HOST}:{target.grpc_port}"
        request = pb.GenerateRequest(
            request_id=f"honest-{next(numbers)}",
            tokenized=pb.TokenizedInput(input_ids=[5, 6, 7]),
            sampling_params=pb.SamplingParams(max_tokens=TOKENS, ignore_eos=True),
        )
        with (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        ) as channel:
            try:
                stub = pb_grpc.VllmEngineStub(channel)
                answers = list(stub.Generate(request, metadata=metadata, timeout=WAIT_S))
            except grpc.RpcError as error:
                return str(error.code().name)
        return ANSWERED if answers else "empty"

    return ask


def loop(protocol: str, ask: Callable[[], str], lock: threading.Lock) -> None:
    """Ask for ever and print each outcome; pauses after a refusal."""
    while True:
        began_s = time.monotonic()
        status = ask()
        sample = Sample(protocol, began_s, time.monotonic(), status)
        with lock:
            print(json.dumps(asdict(sample)), flush=True)
        if status != ANSWERED:
            time.sleep(0.05)


def main() -> None:
    target = Target(**json.load(sys.stdin))
    lock = threading.Lock()
    threading.Thread(target=loop, args=("http", over_http(target), lock), daemon=True).start()
    loop("grpc", over_grpc(target), lock)


if __name__ == "__main__":
    main()
