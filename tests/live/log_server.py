"""Where the API server asks for the logs of pods: `kubectl logs`, `helm test --logs`."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.live.kubelet import LOG_PORT, Kubelet
from tests.live.network import HOST


def serve_logs(kubelet: Kubelet, directory: Path) -> None:
    certificate, key = make_certificate(directory, "kubelet", [HOST])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, _, namespace, name, *_ = f"{url.path}////".split("/")
            lines = parse_qs(url.query).get("tailLines")
            log = kubelet.log_of(namespace, name) if url.path.startswith("/containerLogs/") else None
            if log is not None and lines:
                log = b"".join(log.splitlines(keepends=True)[-int(lines[0]) :])
            self.send_response(404 if log is None else 200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(log or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer((HOST, LOG_PORT), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def make_certificate(directory: Path, name: str, hosts: list[str]) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    names = ",".join(f"IP:{host}" if host[0].isdigit() else f"DNS:{host}" for host in hosts)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
