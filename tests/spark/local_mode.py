"""A driver in local mode, for test_local_mode: its transfer store cannot be listed any more once a move is open."""

from __future__ import annotations

import sys
from pathlib import Path

from manager.embedded import EmbeddedManager
from tests.checkers.sessions import make_session
from tests.checkers.steered import QUICK, Steered


def main(base: Path, redis: str) -> None:
    # Over TCP, as in a session that somebody else has started.
    settings = {"spark.sql.warehouse.dir": str(base / "warehouse"), "spark.python.unix.domain.socket.enabled": "false"}
    spark = make_session("local[2]", **settings)
    with EmbeddedManager(redis, QUICK) as manager:
        join = Steered(base, spark.newSession(), redis, "local").begun()
        owners = join.bound().owners
        asked = join.ask(manager, "mslb", 0, 1, tuple(join.owned(0)[:1]))
        join.until(lambda: join.bound().moves, "an epoch with the move")
        store = join.run.checkpoint / "trimtab" / "transfers"
        if store.exists():
            store.rename(store.with_name("aside"))
        store.symlink_to(store)
        assert join.end_of(manager, asked).state == "rolled-back"
        assert join.bound().owners == owners
        join.check_audits(manager, asked)
        assert store.is_symlink()
        join.finish()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
