"""A schema registry with given schemas, for tests: the routes that Trimtab reads, as the API documents them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote


class RegistryServer:
    """`subjects`: name -> its versions, each what the registry answers about it."""

    def __init__(self, subjects: Mapping[str, Sequence[Mapping[str, Any]]], login: str | None = None) -> None:
        expected = None if login is None else f"Basic {base64.b64encode(login.encode()).decode()}"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = [unquote(part) for part in self.path.strip("/").split("/")]
                versions = subjects.get(parts[1]) if parts[0] == "subjects" and len(parts) > 1 else None
                if expected is not None and self.headers["Authorization"] != expected:
                    self._answer(401, {"error_code": 401})
                elif versions is None:
                    self._answer(404, {"error_code": 40401})
                elif parts[2:] == ["versions"]:
                    # Newest first: nothing is promised about the order.
                    self._answer(200, [each["version"] for each in reversed(versions)])
                else:
                    self._answer(200, next(each for each in versions if str(each["version"]) == parts[3]))

            def _answer(self, status: int, body: object) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *arguments: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
