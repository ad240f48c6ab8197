"""Takes the transfer store away, so that writing to it really raises an OSError, also for root.

Full: a symbolic link to nowhere stands in its place. Who reads finds nothing; who writes fails.
Gone: a symbolic link to itself stands in its place. Reading fails, too. (A plain file would not do: pyarrow takes what
is below a file for something that is not there.)
"""

from __future__ import annotations

from pathlib import Path


class StoreBlock:
    def __init__(self, transfers: Path) -> None:
        self._place = transfers
        self._aside = transfers.with_name("transfers.aside")
        self._number = 0
        self.blocked = False

    def block(self, *, readable: bool) -> None:
        assert not self.blocked
        while True:
            if self._place.is_dir():
                self._number += 1
                self._place.rename(self._aside.with_name(f"{self._aside.name}.{self._number}"))
            try:
                self._place.symlink_to(self._place.with_name("nowhere") / "at" / "all" if readable else self._place)
            except FileExistsError:
                continue  # a worker has made the directory again in between
            self.blocked = True
            return

    def free(self) -> None:
        """The store as it was, with the packages that lay in it: their moves may have ended meanwhile."""
        if not self.blocked:
            return
        self._place.unlink()
        self.blocked = False
        aside = self._aside.with_name(f"{self._aside.name}.{self._number}")
        if not aside.exists():
            return
        self._place.mkdir(exist_ok=True)
        for entry in aside.iterdir():
            target = self._place / entry.name
            if not target.exists():
                entry.rename(target)
