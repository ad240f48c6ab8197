"""What stands in for the images: this machine's Python, Java and Spark, and this checkout.

No image is pulled and none is built. A container sees this machine's files and in /opt what its image would have: the
same commands, paths and variables as in deploy/docker. tests/images builds the images themselves.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.embedded.redis_server import find_server_binary

ROOT: Final = Path(__file__).parents[2]
_PYTHON: Final = "/opt/venv/bin/python"
_SHELL: Final = '#!/bin/sh\nexec {} "$@"\n'


@dataclass(frozen=True, kw_only=True)
class Image:
    """What an image has beside this machine's files."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    trees: tuple[tuple[str, str], ...] = ()
    """Directories of this machine, and where the container has them."""
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/tmp"


def _trees() -> tuple[tuple[str, str], ...]:
    found = ((str(ROOT), "/opt/src"), (str(Path(sys.prefix).resolve()), "/opt/venv"))
    return found if sys.base_prefix == "/usr" else (*found, (sys.base_prefix, sys.base_prefix))


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, name
    return Path(spec.origin).parent.relative_to(sys.prefix)


def _python(name: str, options: str = "-u") -> str:
    """A program of this directory's `inside`, for a container."""
    return f"#!{_PYTHON} {options}\n" + (Path(__file__).parent / "inside" / name).read_text(encoding="utf-8")


_COMMANDS: Final = {
    "/opt/bin/trimtab": _SHELL.format(f"{_PYTHON} -m commands.cli"),
    "/opt/bin/python": _SHELL.format(_PYTHON),
    "/opt/bin/python3": _SHELL.format(_PYTHON),
}
_PATH: Final = "/opt/bin:/usr/local/bin:/usr/bin:/bin"
_SHARED: Final = {"PATH": _PATH, "PYTHONPATH": "/opt/src", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _manager() -> Image:
    serve = {"HOME": "/tmp", "TRIMTAB_SERVE_HOST": "0.0.0.0", "TRIMTAB_SERVE_PORT": "8765"}
    return Image(entrypoint=("trimtab",), command=("serve",), environ=_SHARED | serve, trees=_trees(), files=_COMMANDS)


def _spark() -> Image:
    here = Path("/opt/venv") / _package("pyspark")
    parts = sorted(path.name for path in (Path(sys.prefix) / _package("pyspark")).iterdir())
    users = "root:x:0:0:root:/root:/bin/sh\nspark:x:185:185:spark:/tmp:/bin/sh\n"
    return Image(
        entrypoint=("/opt/entrypoint",),
        environ=_SHARED | {"SPARK_HOME": "/opt/spark", "PYSPARK_PYTHON": "python3"},
        trees=_trees(),
        links={f"/opt/spark/{name}": str(here / name) for name in parts},
        files=_COMMANDS | {"/opt/entrypoint": _python("entrypoint.py"), "/etc/passwd": users},
    )


def _valkey() -> Image:
    server = Path("/opt/venv") / find_server_binary().relative_to(sys.prefix)
    programs = {
        "/opt/bin/valkey-server": _python("valkey_server.py"),
        "/opt/bin/valkey-cli": _python("valkey_cli.py", "-SEs"),
    }
    return Image(
        environ=_SHARED | {"VALKEY_SERVER": str(server)}, trees=_trees(), files=_COMMANDS | programs, directory="/data"
    )


_KNOWN: Final = {"trimtab/manager": _manager, "trimtab/spark": _spark, "valkey/valkey": _valkey}


def find(name: str) -> Image | None:
    """By the last two words of the repository, whatever the registry, tag and digest."""
    repository = "/".join(name.partition("@")[0].split("/")[-2:]).partition(":")[0]
    make = _KNOWN.get(repository)
    return None if make is None else make()
