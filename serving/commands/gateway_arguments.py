"""The gateway flags of `ultraserve serve` (keys, TLS, limits, ports), and their settings.

vLLM's spellings are read too. Keys never go on to vLLM: it logs them, and guards only a part.
"""

from __future__ import annotations

import argparse
import dataclasses
import ssl
import stat
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.errors import ConfigError
from emulator.specs.models import MODELS
from serving.access.control_key import ENVIRONMENT as CONTROL_KEY_VARIABLE
from serving.access.control_key import read_control_key
from serving.access.key_file import is_open_to_readers
from serving.access.key_ring import KeyRing
from serving.access.listen_address import is_loopback
from serving.access.process_listing import API_KEY_VARIABLE, refuse_unsafe_environment
from serving.access.secret import CHOSEN_LENGTH_MIN, hash_of
from serving.access.tls_files import TlsFiles
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.process.front_program import Front
from serving.server.control.control_address import DEFAULT_PORT as CONTROL_PORT
from serving.server.gateway.gateway_settings import GatewaySettings
from startup.typed_options import HIDDEN, add_options, given_options, option, read_options


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The gateway's settings, warnings for the user, and the keys that were given themselves."""

    settings: GatewaySettings
    warnings: tuple[str, ...]
    keys: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def vllm_arguments(self) -> list[str]:
        """Arguments for vLLM's part: TLS of its HTTP server, and priorities."""
        arguments = ["--scheduling-policy", "priority"]
        tls = self.settings.tls
        if tls is None:
            return arguments
        arguments += ["--ssl-certfile", str(tls.certificate), "--ssl-keyfile", str(tls.key)]
        if tls.client_ca is not None:
            arguments += ["--ssl-ca-certs", str(tls.client_ca)]
            arguments += ["--ssl-cert-reqs", f"{ssl.CERT_REQUIRED:d}"]
        return arguments


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """The server's addresses, and its access control."""

    GROUP = "gateway: who may enter, over what, and how much"

    host: str = option("127.0.0.1", "address")
    port: int = option(8_000, "of the OpenAI server (default: 8000)", metavar="PORT")
    control_host: str = option(
        "127.0.0.1", "address of the control service; beyond loopback it needs --tls-cert"
    )
    control_port: int = option(
        CONTROL_PORT,
        "of the control service, for `ultraserve state` and `ultraserve fault` "
        f"(default: {CONTROL_PORT}; 0: no such service)",
        metavar="PORT",
    )
    api_key: tuple[str, ...] | None = option(
        None,
        "keys without limits, as vLLM has them; other users can see them while the server starts, "
        f"and never in {API_KEY_VARIABLE}",
        nargs="+",
        action="extend",
        metavar="KEY",
    )
    insecure_no_key: bool = option(False, "listen beyond this machine although no key is needed")
    tls_cert: Path | None = option(
        None,
        "certificate of HTTP, gRPC and the control service",
        *("--tls-cert", "--ssl-certfile"),
        metavar="PEM",
    )
    tls_key: Path | None = option(
        None, "its private key", "--tls-key", "--ssl-keyfile", metavar="PEM"
    )
    tls_client_ca: Path | None = option(
        None,
        "clients must show a certificate of this authority",
        *("--tls-client-ca", "--ssl-ca-certs"),
        metavar="PEM",
    )
    ssl_cert_reqs: int | None = option(None, HIDDEN)
    front: Front | None = option(
        None,
        "a native HTTP server before the engine, on a port of its own: smg, the public Shepherd "
        "Model Gateway, which is installed apart (default: none)",
    )
    front_port: int = option(8_080, "of the front", metavar="PORT")
    front_metrics_port: int = option(
        29_000, "of the front's own metrics, on loopback", metavar="PORT"
    )


def add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_options(parser, EntryOptions)
    limits = parser.add_argument_group("gateway's limits")
    for kind in (GatewaySettings, AdmissionLimits):
        add_options(limits, kind)


def gateway_options(
    args: argparse.Namespace, environment: MutableMapping[str, str]
) -> GatewayOptions:
    """The settings by the flags in `args` and the environment, without the keys in either.

    Raises ConfigError for contradictory or unreadable settings, or a server open to strangers.
    """
    secrets = _take_keys(args, environment)
    refuse_unsafe_environment(environment)
    tls = _tls(args)
    if tls is not None:
        tls.context()  # a file that is wrong is told now
    given = given_options(GatewaySettings, args) | {
        "limits": read_options(AdmissionLimits, args),
        "grpc_host": args.host,
        "key_file": None if args.key_file is None else args.key_file.absolute(),
        "key_hashes": tuple(hash_of(secret) for _, secret in secrets),
        "control_key_file": _control_key_file(args),
        "tls": tls,
    }
    settings = GatewaySettings(**given)
    _check_ports(args)
    if not is_loopback(args.control_host) and tls is None:
        raise ConfigError(
            "control_host",
            args.control_host,
            "a loopback address, or --tls-cert and --tls-key with it",
        )
    # A file that is wrong is told now.
    is_open = KeyRing(key_file=settings.key_file, key_hashes=settings.key_hashes).is_open
    warnings = [
        *_short_keys(secrets),
        *_readable_files(settings.key_file, tls),
        *_exposure(args, tls, is_open=is_open),
    ]
    keys = tuple(secret for _, secret in secrets)
    return GatewayOptions(settings=settings, warnings=tuple(warnings), keys=keys)


def console_port(args: argparse.Namespace) -> int:
    """The console's port; 0 without one."""
    if not args.control_port:
        return 0
    return int(args.control_port + 1 if args.console_port is None else args.console_port)


def _take_keys(
    args: argparse.Namespace, environment: MutableMapping[str, str]
) -> list[tuple[str, str]]:
    """Source and key, once each."""
    given: Sequence[str] = args.api_key or ()
    args.api_key = None
    inherited = environment.pop(API_KEY_VARIABLE, "").strip()  # a line of a file, mostly
    environment.pop(CONTROL_KEY_VARIABLE, None)
    if any(secret in MODELS for secret in given):
        raise ConfigError("api_key", "(a model's name)", "keys; give the model before them")
    if not all(given):
        raise ConfigError("api_key", "(empty)", "a key")
    places = [(f"--api-key, number {number}", secret) for number, secret in enumerate(given, 1)]
    if inherited and inherited not in given:
        places.append((API_KEY_VARIABLE, inherited))
    return [place for i, place in enumerate(places) if place[1] not in given[:i]]


def _short_keys(secrets: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{where}: a key of {len(secret)} characters can be guessed; `ultraserve key create` draws "
        "one of 256 bits"
        for where, secret in secrets
        if len(secret) < CHOSEN_LENGTH_MIN
    ]


def _readable_files(key_file: Path | None, tls: TlsFiles | None) -> list[str]:
    """Secrets that other users can read; a private key's group may."""
    paths = []
    if key_file is not None and is_open_to_readers(key_file.stat()):
        paths.append(key_file)
    if tls is not None and tls.key.stat().st_mode & stat.S_IROTH:
        paths.append(tls.key)
    return [f"other users can read {path}: chmod 600 {path}" for path in paths]


def _exposure(args: argparse.Namespace, tls: TlsFiles | None, *, is_open: bool) -> list[str]:
    """Warnings of strangers' access; raises ConfigError for all of it without --insecure-no-key."""
    if is_loopback(args.host):
        return []
    asks_nobody = is_open and (tls is None or tls.client_ca is None)
    if asks_nobody and not args.insecure_no_key:
        raise ConfigError(
            "host",
            args.host or "(every address)",
            "--api-keys, --api-key or --tls-client-ca with an address beyond this "
            "machine; or --insecure-no-key, and whoever reaches it may use it",
        )
    if asks_nobody:
        return [f"host={args.host}: whoever reaches it may use it: nobody needs a key"]
    if tls is None:
        return [f"host={args.host}: keys and prompts travel in plain text: --tls-cert, --tls-key"]
    return []


def _tls(args: argparse.Namespace) -> TlsFiles | None:
    certificate, key, client_ca = args.tls_cert, args.tls_key, args.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    for field, value in (("tls_cert", certificate), ("tls_key", key)):
        if value is None:
            raise ConfigError(field, "(none)", "both --tls-cert and --tls-key")
    if client_ca is not None and args.ssl_cert_reqs not in (None, ssl.CERT_REQUIRED):
        raise ConfigError(
            "ssl_cert_reqs",
            args.ssl_cert_reqs,
            f"{ssl.CERT_REQUIRED:d} with --tls-client-ca: both protocols ask every client",
        )
    return TlsFiles(
        certificate=certificate.absolute(),
        key=key.absolute(),
        client_ca=None if client_ca is None else client_ca.absolute(),
    )


def _control_key_file(args: argparse.Namespace) -> Path | None:
    path: Path | None = args.control_key_file
    if path is None:
        return None
    read_control_key(path)
    return path.absolute()


def _check_ports(args: argparse.Namespace) -> None:
    """Raise ConfigError when two services have one port."""
    taken = {args.port: "--port"}
    ports = {"grpc_port": args.grpc_port, "control_port": args.control_port}
    if args.front is not None:
        ports |= {"front_port": args.front_port, "front_metrics_port": args.front_metrics_port}
    for field, port in {**ports, "console_port": console_port(args)}.items():
        if not port:  # no such service
            continue
        if field == "console_port" and not 1 <= port <= 65_535:
            raise ConfigError(field, port, "1 to 65535")
        if port in taken:
            raise ConfigError(field, port, f"another port than {taken[port]}")
        taken[port] = f"--{field.replace('_', '-')}"
