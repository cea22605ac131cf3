"""A vLLM engine in this process, on chips that are real processes, in virtual time."""

import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from vllm import LLM, RequestOutput

from emulator.actors.packet_socket import PacketSocket
from emulator.data import SMALL_MOE_DIR
from emulator.fleet import Fleet
from emulator.ultraserver.machine import Machine
from serving.engine.live_engine import LiveEngine
from serving.engine.live_machine import LiveMachine
from serving.plugin.executor import UltraServeExecutor
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.wire.control_call import (
    METHOD,
    ControlReply,
    ControlRequest,
    reply_from_json,
    to_json,
)
from tests.simulation.asks import CONTEXT_TOKENS, Ask

BLOCK_TOKENS = 16
KV_BLOCKS = 24
"""Of each rank: one and a half of the longest contexts, so that requests preempt each other."""


class TroubledEngine:
    """The engine's parts, open to tests."""

    def __init__(self, llm: LLM) -> None:
        self._engine = llm.llm_engine
        core = llm.llm_engine.engine_core.engine_core
        self.scheduler: LockstepScheduler = core.scheduler
        self.executor: UltraServeExecutor = core.model_executor
        self.live: LiveEngine = self.executor.live_engine()
        self.live_machine: LiveMachine = self.live._live
        self.machine: Machine = self.live_machine.machine
        self.fleet: Fleet = self.executor.live_fleet()

    def add(self, name: str, ask: Ask, priority: int) -> None:
        prompt = {"prompt_token_ids": list(ask.prompt)}
        self._engine.add_request(name, prompt, ask.params.clone(), priority=priority)

    def abort(self, name: str) -> None:
        self._engine.abort_request([name])

    def step(self) -> Sequence[RequestOutput]:
        outputs: list[RequestOutput] = self._engine.step()
        return outputs

    def is_idle(self) -> bool:
        """Whether there is nothing to compute and no message for the chips."""
        return not self.scheduler.has_requests()

    def control(self, request: ControlRequest) -> ControlReply:
        (reply,) = self.executor.collective_rpc(METHOD, args=(to_json(request),))
        return reply_from_json(reply)

    def position_of(self, chip: int) -> int | None:
        """The position of `chip`; None when it stands by or is out."""
        seats = np.flatnonzero(self.machine.seating.chip_of_position == chip)
        return int(seats[0]) if len(seats) else None

    def processes(self) -> dict[int, psutil.Process]:
        """The process of each live chip, by position: the peer of its socket."""
        sockets = self.fleet._processes.channel._sockets
        return {
            position: psutil.Process(_pid_of_peer(sockets[position]))
            for position in self.fleet.live_chips
        }


def _pid_of_peer(channel: PacketSocket) -> int:
    size = struct.calcsize("3i")
    credentials = channel._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


@contextmanager
def running_engine(settings: dict[str, Any], **arguments: Any) -> Iterator[TroubledEngine]:
    """Start an engine with the platform's `settings`; asserts at the end that nothing is left."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    scratch = Path(tempfile.mkdtemp(prefix="chaos-"))  # short, since Unix sockets lie in it
    llm: LLM | None = None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            patch.setenv("HF_HUB_OFFLINE", "1")
            patch.setattr(tempfile, "tempdir", str(scratch))
            llm = LLM(model=str(SMALL_MOE_DIR), **_arguments(settings) | arguments)
        yield TroubledEngine(llm)
    finally:
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        children = psutil.Process().children(recursive=True)
        left = [
            process
            for process in children
            if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE
        ]
        shutil.rmtree(scratch, ignore_errors=True)
    assert left == [], "processes are left"


def _arguments(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_model_len": CONTEXT_TOKENS,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "block_size": BLOCK_TOKENS,
        "num_gpu_blocks_override": KV_BLOCKS,
        # White space between the parts of an object is any amount of it, from random weights.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "additional_config": {"ultraserve": {"clock": "virtual"} | settings},
    }
