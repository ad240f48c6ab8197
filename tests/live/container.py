"""Becomes one container: a program of its own, started by the kubelet with a description in JSON.

Namespaces for network, mounts and processes; this machine's files below a layer of its own; the volumes at their
places; then the container's user, and its command as process 1. It forwards SIGTERM, takes the container with it when
it is killed, and ends with its exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

NEWNS, NEWUTS, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000
RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
DETACH = 2
PDEATHSIG, NO_NEW_PRIVS = 1, 38
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    values = [each.encode() if isinstance(each, str) else each for each in arguments]
    if getattr(_libc, name)(*values) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    call("mount", source, target, kind, ctypes.c_ulong(flags), options)


def bind(source: str, target: str, *, read_only: bool) -> None:
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, target, None, BIND | REC)
    if read_only:
        mount(source, target, None, BIND | REC | REMOUNT | RDONLY)


def make_root(spec: dict[str, Any]) -> None:
    """The file system, with this process in it."""
    mount("none", "/", None, REC | PRIVATE)
    layer = Path(spec["layer"])
    layer.mkdir(exist_ok=True)
    mount("tmpfs", str(layer), "tmpfs")
    for name in ("upper", "work", "root"):
        (layer / name).mkdir()
    mount(
        "overlay", str(layer / "root"), "overlay", 0, f"lowerdir=/,upperdir={layer / 'upper'},workdir={layer / 'work'}"
    )
    root = layer / "root"
    for source, target in spec["image"]["trees"]:
        bind(source, f"{root}{target}", read_only=True)
    # What the image has must be readable for its user, whose home this machine's files may be in no way.
    for _, target in spec["image"]["trees"]:
        for above in Path(target).parents:
            os.chmod(f"{root}{above}", 0o755)
    for name in ("dev", "sys"):
        mount(f"/{name}", str(root / name), None, BIND | REC)
    (root / ".state").mkdir()
    mount(spec["state"], str(root / ".state"), None, BIND | REC)
    os.chroot(root)
    os.chdir("/")
    mount("proc", "/proc", "proc")
    for path, target in spec["image"]["links"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, path)
    for path, text in spec["image"]["files"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        Path(path).write_text(text)
        os.chmod(path, 0o755)
    for place in sorted(spec["mounts"], key=lambda each: len(each["path"])):
        bind(f"/.state/{place['from']}", place["path"], read_only=place["read_only"])
    call("umount2", "/.state", DETACH)
    if spec["read_only"]:
        mount("overlay", "/", None, REMOUNT | RDONLY)


def become(spec: dict[str, Any]) -> None:
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    make_root(spec)
    os.setgroups(spec["groups"])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    # A change of user forgets it.
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.umask(0o022)
    os.chdir(spec["directory"])
    os.execvpe(spec["command"][0], spec["command"], spec["environ"])


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    with open(f"/run/netns/{spec['network']}", "rb") as network:
        call("setns", network.fileno(), NEWNET)
    call("unshare", NEWNS | NEWPID | NEWUTS)
    call("sethostname", spec["hostname"], len(spec["hostname"]))
    child = os.fork()
    if child == 0:
        try:
            become(spec)
        except BaseException as error:
            print(f"The container cannot be started: {error}", file=sys.stderr, flush=True)
        os._exit(126)

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, forward)
    Path(spec["pid"]).write_text(str(child))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
