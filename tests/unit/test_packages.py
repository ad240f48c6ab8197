"""What pyproject.toml ships: every package of the tree that it should, found by its files, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_is_listed() -> None:
    """An editable installation finds what is not listed, too: only an image or a wheel would lack it."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    shipped = {name for name in listed if "." not in name}
    found = {".".join(path.parent.relative_to(ROOT).parts) for name in shipped for path in (ROOT / name).rglob("*.py")}
    # The page is files for browsers, without Python.
    assert found | {"api.page"} == set(listed)
