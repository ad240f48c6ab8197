"""Builds the images with buildah and runs them with runc, as a cluster does: not as root, on a root that is read-only.

runc rather than an engine: it needs no daemon, no network of its own, and no limits that may not be set in a container.
What an engine would add to what the image says is in `bundle`.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "artifacts" / "images"
PACKAGES: Final = {"buildah": "buildah", "debootstrap": "debootstrap", "runc": "runc"}
"""Tool -> Debian's package."""
BUILD_S: Final = 3600
RUN_S: Final = 600


class ToolMissing(Exception):
    """What these tests need is not there and cannot be installed from here."""


@functools.cache
def prepare() -> None:
    """The tools; Debian's are installed where that is possible."""
    if os.geteuid() != 0:
        raise ToolMissing("Building and running images needs root: run `make images` as root.")
    missing = sorted(package for tool, package in PACKAGES.items() if shutil.which(tool) is None)
    if not missing:
        return
    apt = shutil.which("apt-get")
    if apt is None:
        raise ToolMissing(f"These tests need {', '.join(missing)}: install them, or run `make images` on Debian.")
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run([apt, "-q", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolMissing(
                f"apt-get {command[0]} failed, so {', '.join(missing)} is missing:\n{done.stderr[-2000:]}"
            )


@functools.cache
def environment() -> Mapping[str, str]:
    """A store of our own below artifacts/, so that nothing is left among somebody's images."""
    CACHE.mkdir(parents=True, exist_ok=True)
    kind = subprocess.run(["stat", "-f", "-c", "%T", CACHE], capture_output=True, text=True, check=True).stdout.strip()
    # Overlays do not lie on overlays.
    driver = "vfs" if kind == "overlayfs" else "overlay"
    settings = CACHE / "storage.conf"
    settings.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{CACHE}/store"\nrunroot = "{CACHE}/run"\n')
    return {**os.environ, "CONTAINERS_STORAGE_CONF": str(settings)}


def _buildah(*arguments: str) -> str:
    done = subprocess.run(
        ["buildah", *arguments], capture_output=True, text=True, env=environment(), timeout=RUN_S, check=False
    )
    assert done.returncode == 0, f"buildah {' '.join(arguments)}: {done.stderr[-4000:]}"
    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Image:
    name: str
    root: Path
    """Its files, where they are mounted."""
    bytes_total: int
    config: Mapping[str, Any]
    """As in the image: User, Env, Entrypoint, Cmd, WorkingDir, Labels, Healthcheck."""


def build(name: str) -> None:
    done = subprocess.run(
        [ROOT / "deploy/docker/build_local.sh", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, f"{name}: {done.stdout[-8000:]}"


@contextmanager
def mounted(name: str) -> Iterator[Image]:
    tag = f"localhost/trimtab/{name}:local"
    told = json.loads(_buildah("inspect", "--type", "image", tag))
    container = _buildah("from", "--pull-never", tag)
    try:
        root = Path(_buildah("mount", container))
        sizes = (path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        yield Image(name=name, root=root, bytes_total=sum(sizes), config=told["Docker"]["config"])
    finally:
        _buildah("rm", container)


@dataclass(frozen=True, kw_only=True)
class Start:
    """How an image is started: its own command, unless another one is given."""

    arguments: Sequence[str] = ()
    entrypoint: Sequence[str] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Path in the container -> directory here, which it may write to."""


def bundle(image: Image, start: Start, directory: Path) -> Path:
    """What runc is told: the image's own settings, and nothing writable but /tmp and what is mounted."""
    uid, _, gid = image.config["User"].partition(":")
    entrypoint = image.config.get("Entrypoint") or [] if start.entrypoint is None else start.entrypoint
    default = [] if start.entrypoint is not None else image.config.get("Cmd") or []
    environ = [*image.config["Env"], *(f"{name}={value}" for name, value in start.environ.items())]
    private = ["nosuid", "nodev"]
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": [*private, "mode=1777", "size=65536k"],
        },
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*private, "noexec", "ro"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*private, "mode=1777"]},
        # As engines do, so that the machine's own name is known.
        {"destination": "/etc/hosts", "type": "bind", "source": "/etc/hosts", "options": ["bind", "ro"]},
    ]
    for inside, here in start.mounts.items():
        mounts.append({"destination": inside, "type": "bind", "source": str(here), "options": ["bind", *private]})
    told = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": int(uid), "gid": int(gid)},
            "args": [*entrypoint, *(start.arguments or default)],
            "env": environ,
            "cwd": image.config.get("WorkingDir") or "/",
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.root), "readonly": True},
        "mounts": mounts,
        # The machine's network: servers and clients of a test meet on its loopback address.
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount")]},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(told))
    return directory


class Container:
    """A running image; gone when the block ends."""

    def __init__(self, image: Image, start: Start, directory: Path) -> None:
        self.name = f"trimtab-{uuid.uuid4().hex[:12]}"
        self._image = image
        self._runc = ["runc", "--root", str(CACHE / "runc")]
        self._log = directory / f"{self.name}.log"
        self._bundle = bundle(image, start, directory / self.name)

    def __enter__(self) -> Container:
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*self._runc, "run", "--bundle", str(self._bundle), self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            subprocess.run([*self._runc, "kill", self.name, "KILL"], capture_output=True, check=False)
            self.process.wait(RUN_S)
        subprocess.run([*self._runc, "delete", "--force", self.name], capture_output=True, check=False)

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        """Commands can be run in it."""
        done = subprocess.run([*self._runc, "state", self.name], capture_output=True, text=True, check=False)
        return done.returncode == 0 and json.loads(done.stdout)["status"] == "running"

    def ended(self) -> int:
        """Its exit code, once it has one."""
        return self.process.wait(RUN_S)

    def terminate(self) -> int:
        """SIGTERM, as a cluster sends it; the exit code."""
        self.process.terminate()
        return self.ended()

    def healthy(self) -> bool:
        """What the image's own health check says."""
        kind, *words = self._image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        done = subprocess.run(
            [*self._runc, "exec", self.name, *words], capture_output=True, text=True, timeout=RUN_S, check=False
        )
        return done.returncode == 0


def run(image: Image, start: Start, directory: Path) -> tuple[int, str]:
    """Exit code and output of a command that ends by itself."""
    with Container(image, start, directory) as container:
        return container.ended(), container.output
