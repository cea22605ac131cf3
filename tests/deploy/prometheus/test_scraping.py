"""The configurations scrape: a real Prometheus, and a page that is not an engine's."""

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from serving.server.gateway.http.metrics_page import FIRST_WITHIN_S
from tests.e2e.server_process import HOST
from tests.prometheus_server import DEPLOYED, PrometheusServer, QueryRefused

KEY = "a-key-that-only-this-test-knows"
PAGE = b"""# TYPE ultraserve_chips gauge
ultraserve_chips 4
# TYPE ultraserve_chips_created gauge
ultraserve_chips_created 1.7e9
"""


class Page(http.server.BaseHTTPRequestHandler):
    """One page of metrics, for who shows the key if there is one."""

    key = ""

    def do_GET(self) -> None:
        known = not self.key or self.headers.get("Authorization") == f"Bearer {self.key}"
        self.send_response(200 if known and self.path == "/metrics" else 401)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        if known:
            self.wfile.write(PAGE)

    def log_message(self, *words: object) -> None:
        """Says nothing."""


class GuardedPage(Page):
    """The same, for who shows `KEY`."""

    key = KEY


@contextlib.contextmanager
def served(page: type[Page], certificate: trustme.LeafCert | None = None) -> Iterator[str]:
    """The address at which `page` is served."""
    with http.server.ThreadingHTTPServer((HOST, 0), page) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_whose_engine_is_silent_comes_long_before_prometheus_gives_up() -> None:
    settings = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())["global"]
    timeout_s = float(settings["scrape_timeout"].removesuffix("s"))

    assert timeout_s >= 2 * FIRST_WITHIN_S


@pytest.mark.process
def test_a_page_is_scraped_without_series_beginnings_and_its_end_is_an_alert(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        with served(Page) as address:
            prometheus = PrometheusServer(DEPLOYED, targets=[address], folder=tmp_path)
            alerts = prometheus.settings / "rules" / "alerts.yml"
            alerts.write_text(alerts.read_text().replace("for: 30s", "for: 1s"))
            stack.enter_context(prometheus)
            prometheus.wait_targets_up()
            (chips,) = prometheus.query("ultraserve_chips")
            assert chips.value == 4
            assert chips.labels["instance"] == address
            assert prometheus.query("ultraserve_chips_created") == []
            with pytest.raises(QueryRefused, match="parse error"):
                prometheus.query("rate(")
            assert "UltraServeDown" not in prometheus.firing()
        prometheus.wait_until(lambda: "UltraServeDown" in prometheus.firing(), "alert")


@pytest.mark.process
def test_a_server_that_wants_a_key_and_speaks_tls_is_scraped_by_its_given_name(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    with served(GuardedPage, authority.issue_cert(HOST)) as address:
        prometheus = PrometheusServer(
            DEPLOYED, targets=[address], folder=tmp_path, file="prometheus-tls.yml"
        )
        secrets = prometheus.settings / "secrets"
        secrets.mkdir()
        (secrets / "key").write_text(f"{KEY}\n")
        authority.cert_pem.write_to_path(secrets / "ca.pem")
        named = [{"targets": [address], "labels": {"server": "left"}}]
        (prometheus.settings / "targets" / "tested.yml").write_text(yaml.safe_dump(named))
        with prometheus:
            prometheus.wait_targets_up()
            (chips,) = prometheus.query("ultraserve_chips")
            assert dict(chips.labels) == {
                "__name__": "ultraserve_chips",
                "instance": "left",
                "job": "ultraserve",
            }
