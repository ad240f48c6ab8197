"""Writes the two files that spark-submit needs: our packages as one zip, and the entry."""

from __future__ import annotations

import shutil
from pathlib import Path

from split_union.shipping import SUBMIT_PACKAGES, build_archive
from trimtab.errors import InvalidInput


def write_archive(directory: Path) -> tuple[Path, Path]:
    built = build_archive(SUBMIT_PACKAGES)
    packages = directory / built.name
    entry = directory / "submit.py"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, packages)
        shutil.copyfile(Path(__file__).with_name("submit.py"), entry)
    except OSError as error:
        raise InvalidInput(
            "DIR", str(directory), f"cannot be written ({error.strerror})", "Give a directory of your own."
        ) from None
    return packages, entry
