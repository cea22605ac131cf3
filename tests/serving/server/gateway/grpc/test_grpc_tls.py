from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from emulator.errors import ConfigError
from serving.server.gateway.grpc.rpc_caller import ENGINE
from tests.serving.server.gateway.certificates import pem, written
from tests.serving.server.gateway.grpc.served_grpc import ServedGrpc
from tests.serving.server.gateway.grpc.test_grpc_generate import run


async def answers(at: ServedGrpc, credentials: grpc.ChannelCredentials) -> bool:
    """Whether a new connection with these credentials comes through."""
    address = f"127.0.0.1:{at.server_port}"
    # Channels to one address share a connection unless their arguments differ.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        try:
            info = await pb_grpc.VllmEngineStub(channel).GetModelInfo(
                pb.GetModelInfoRequest(), timeout=5.0
            )
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017  a refused handshake
            return False
    return bool(info.is_generation)


def trusting(
    authority: trustme.CA, client: trustme.LeafCert | None = None
) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(pem(authority))
    chain = b"".join(each.bytes() for each in client.cert_chain_pems)
    return grpc.ssl_channel_credentials(pem(authority), client.private_key_pem.bytes(), chain)


def test_who_trusts_the_authority_comes_in_and_plain_text_does_not(tmp_path: Path) -> None:
    ours, other = trustme.CA(), trustme.CA()

    async def check(at: ServedGrpc) -> None:
        assert await answers(at, trusting(ours))
        assert not await answers(at, trusting(other))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{at.server_port}") as channel:
            call = channel.unary_unary(f"{ENGINE}GetModelInfo")(b"", timeout=5.0)
            with pytest.raises(grpc.aio.AioRpcError):
                await call

    run(check, tls=written(tmp_path, ours))


@pytest.mark.long
def test_with_an_authority_of_clients_only_theirs_come_in(tmp_path: Path) -> None:
    ours, clients, other = trustme.CA(), trustme.CA(), trustme.CA()

    async def check(at: ServedGrpc) -> None:
        assert await answers(at, trusting(ours, clients.issue_cert("client")))
        assert not await answers(at, trusting(ours))
        assert not await answers(at, trusting(ours, other.issue_cert("client")))

    run(check, tls=written(tmp_path, ours, clients))


@pytest.mark.long
def test_a_renewed_certificate_is_shown_to_who_comes_next(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()

    async def check(at: ServedGrpc) -> None:
        assert await answers(at, trusting(old))

        written(tmp_path, new)

        assert await answers(at, trusting(new))
        assert not await answers(at, trusting(old))

    run(check, tls=written(tmp_path, old))


def test_a_renewal_that_is_half_written_leaves_the_certificate_as_it_was(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    files = written(tmp_path, old)

    async def check(at: ServedGrpc) -> None:
        files.key.write_bytes(b"-----BEGIN")
        assert await answers(at, trusting(old))

        files.key.unlink()
        assert await answers(at, trusting(old))

        written(tmp_path, new)
        assert await answers(at, trusting(new))

    run(check, tls=files)


async def nothing(_: ServedGrpc) -> None:
    raise AssertionError("it has started")


def test_a_server_does_not_start_with_a_key_of_another_certificate(tmp_path: Path) -> None:
    files = written(tmp_path, trustme.CA())
    files.key.write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes())

    with pytest.raises(ConfigError, match="tls_cert"):
        run(nothing, tls=files)
