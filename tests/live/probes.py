"""Whether a container has started, lives and is ready: asked over HTTP, TCP or by a command, as its probes say."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.live.api import Object

Execute = Callable[[list[str], float], bool]
_UNCHECKED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_UNCHECKED.check_hostname = False
_UNCHECKED.verify_mode = ssl.CERT_NONE


@dataclass
class Probe:
    """One of a container's probes, with what it has found so far."""

    spec: Object
    passed: bool
    """Its answer now. Readiness begins with no, liveness with yes."""
    failures: int = 0
    next_at: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> bool:
        return self.failures >= int(self.spec.get("failureThreshold", 3))

    def ask(self, container: Object, address: str, execute: Execute) -> None:
        """If it is time."""
        if time.monotonic() < self.next_at:
            return
        if _asked(self.spec, container, address, execute):
            self.passed, self.failures = True, 0
        else:
            self.failures += 1
            if self.failed:
                self.passed = False
        self.next_at = time.monotonic() + float(self.spec.get("periodSeconds", 10))


def _asked(spec: Object, container: Object, address: str, execute: Execute) -> bool:
    timeout = float(spec.get("timeoutSeconds", 1))
    if "exec" in spec:
        return execute(spec["exec"]["command"], timeout)
    port = _port((spec.get("httpGet") or spec["tcpSocket"])["port"], container)
    try:
        if "tcpSocket" in spec:
            socket.create_connection((address, port), timeout=timeout).close()
            return True
        what = spec["httpGet"]
        secure = what.get("scheme", "HTTP") == "HTTPS"
        return status_of(address, port, what.get("path", "/"), secure=secure, timeout=timeout) < 400
    except (OSError, http.client.HTTPException):
        return False


def status_of(host: str, port: int, path: str, *, secure: bool, timeout: float) -> int:
    """Ask over a connection of its own. As a kubelet does it: certificates are not checked, redirects not followed."""
    if secure:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=timeout, context=_UNCHECKED
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    return next(int(each["containerPort"]) for each in container["ports"] if each["name"] == port)
