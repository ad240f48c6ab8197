"""Keeps a query's runner at work, whatever goes wrong.

Whatever goes wrong, the next turn begins with what Redis and the bound epoch say: losing the lease, an answer or all of
Redis leads there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from redis.exceptions import RedisError

from manager.journal import WentBack
from manager.lease import Fenced
from manager.runner import QueryRunner
from manager.settings import ManagerSettings

log = logging.getLogger("trimtab.manager")


async def keep_turning(runner: QueryRunner, stop: asyncio.Event) -> None:
    """Turns until told to stop. Nothing that Redis or a query does ends it; the lease is handed back at the end."""
    settings = runner.settings
    delay_s = settings.poll_s
    announced: set[str] = set()
    while not stop.is_set():
        if (task := asyncio.current_task()) is not None and task.cancelling():
            # The Redis client (8.1) swallows a cancellation that meets it while it reads.
            raise asyncio.CancelledError
        try:
            await runner.turn()
            runner.problem = ""
            delay_s = settings.poll_s
        except Fenced as error:
            log.warning("%s: %s; standing down", runner.query, error)
            runner.stand_down()
        except WentBack as error:
            # The next turn begins with putting it right.
            log.warning("%s: Redis went back: %s", runner.query, error)
        except (RedisError, OSError, TimeoutError) as error:
            runner.doubt(f"Redis does not answer: {error}")
            delay_s = _longer(delay_s, settings)
        except Exception as error:
            # A bug must not take the other queries' manager down with it.
            log.exception("%s: a turn failed", runner.query)
            problem = f"{type(error).__name__}: {error}"
            await _announce(runner, problem, announced)
            runner.doubt(problem)
            delay_s = _longer(delay_s, settings)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await stop.wait()
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        await runner.lease.release()


async def _announce(runner: QueryRunner, problem: str, announced: set[str]) -> None:
    """To people, once: the query is not managed until a turn succeeds, whoever leads."""
    if runner.problem or problem in announced:
        return
    with contextlib.suppress(RedisError, OSError):
        await runner.store.alarm(runner.query, "manager", f"the manager fails: {problem}")
        announced.add(problem)


def _longer(delay_s: float, settings: ManagerSettings) -> float:
    return min(max(delay_s * 2, settings.backoff_first_s), settings.backoff_max_s)
