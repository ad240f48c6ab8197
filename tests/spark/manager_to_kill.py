"""A manager that dies, like a machine without power, when it passes a point: `manager_to_kill.py REDIS POINT`."""

from __future__ import annotations

import asyncio
import os
import sys

from manager.runner import QueryRunner, make_runner
from manager.service import ManagerService
from manager.settings import ManagerSettings
from manager.store import ManagerStore


async def main(url: str, point: str) -> None:
    settings = ManagerSettings(poll_s=0.02, discover_s=0.05, lease_ttl_s=1.5, lease_renew_s=0.4, snapshot_s=0.2)
    store = ManagerStore(url)

    def crash(passed: str) -> None:
        if passed == point:
            os._exit(9)

    def runner(query: str) -> QueryRunner:
        return make_runner(store, query, "to-be-killed", settings, crash=crash)

    await ManagerService(store, settings, runner_for=runner).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
