"""All servers in one process, whose memory can be read: `python -m` of this module.

vLLM's own app behind the HTTP server, the published service behind the gRPC server, on the small
AsyncLLM; the control service on a small engine, in the same loop (uvloop, as vLLM's). The ports go
to stdout as a line of JSON; the process ends with its stdin.
"""

import asyncio
import gc
import json
import sys
from typing import Any

import uvloop

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_server import ControlServer
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits
from serving.server.gateway.memory_return import MemoryReturn
from tests.e2e.server_process import free_port
from tests.serving.server.control.small_engine import SmallEngine
from tests.serving.server.gateway.grpc.served_grpc import served_grpc_server
from tests.serving.server.gateway.hostile.target import KEY, OTHER_KEY
from tests.serving.server.gateway.http.served_http import http_server

BODY_BYTES_MAX = 16 * 2**20


async def serve() -> None:
    keys = KeyRing(key_hashes=[hash_of(KEY), hash_of(OTHER_KEY)])
    account = IngressAccount(IngressLimits.of(BODY_BYTES_MAX))
    async with (
        http_server(keys=keys, body_bytes_max=BODY_BYTES_MAX, account=account) as http,
        served_grpc_server(keys=keys, body_bytes_max=BODY_BYTES_MAX, ingress=account) as grpc,
    ):
        address = ControlAddress(port=free_port())
        engine: Any = SmallEngine()
        control = ControlServer(engine, address, admits=lambda shown: shown == KEY)
        await control.start()
        ports = {
            "http_port": int(http.url.rpartition(":")[2]),
            "grpc_port": grpc.server_port,
            "control_port": address.port,
            "console_port": address.console().port,
        }
        memory = MemoryReturn()
        await memory.start()
        gc.collect()  # and never again of what is here, as vLLM's server has it
        gc.freeze()
        print(json.dumps(ports), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await memory.stop()
        await control.stop()


if __name__ == "__main__":
    uvloop.run(serve())
