"""Two `trimtab serve` processes: one leads, the other stands by."""

from __future__ import annotations

from tests.soak.layout import Layout
from tests.soak.processes import TrimtabProcess, free_port


class Manager(TrimtabProcess):
    def __init__(self, number: int, redis: str, layout: Layout, mark: str) -> None:
        self.port = free_port()
        options = ["serve", "--redis", redis, "--port", str(self.port), "--no-access-log"]
        super().__init__(f"manager-{number}", options, layout.logs, mark)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
