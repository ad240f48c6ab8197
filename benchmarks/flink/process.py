"""Starts Flink: jars by Maven, once, outside the checkout; the program compiled by the JDK at hand."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from examples.kafka.jars import JarsMissing, fetch

HERE: Final = Path(__file__).resolve().parent
JARS_VARIABLE: Final = "TRIMTAB_FLINK_JARS"
"""A directory with Flink's jars, in place of what Maven fetches."""
_COMPILE_S: Final = 180
# As Flink's own scripts have it (env.java.opts.all).
_OPENED: Final = (
    *(
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.net",
        "java.io",
        "java.nio",
        "java.text",
        "java.time",
    ),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
)


class FlinkMissing(Exception):
    """There is no JDK, or no way to Flink's jars: the comparison cannot be made here."""


class FlinkFailed(Exception):
    """Flink was there and did not do its work."""


@dataclass(frozen=True)
class FlinkRun:
    ms: float
    rows: int
    """That were counted."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.ms * 1000


class Flink:
    """`with Flink(memory, log) as flink: flink.run(...)`: one JVM, which gets warm."""

    def __init__(self, memory: str, log: Path) -> None:
        path = class_path()
        options = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED]
        self._command = [str(_jdk() / "bin" / "java"), f"-Xmx{memory}", *options, "-cp", path, "FlinkJoin"]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def run(
        self,
        form: str,
        directory: Path,
        streams: str,
        window_us: int,
        parallelism: int,
        uncounted: int,
        rows: int,
        results: Path | None = None,
    ) -> FlinkRun:
        """One job over all files: `interval` joins, or `multi`, the multi-way operator for regular joins."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        request: Sequence[object] = (form, directory, streams, window_us, parallelism, uncounted, rows, results or "-")
        try:
            self._process.stdin.write("\t".join(map(str, request)) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                word, *told = line.rstrip("\n").split("\t")
                if word == "done":
                    return FlinkRun(float(told[0]), int(told[1]))
        except BrokenPipeError:
            pass
        raise FlinkFailed(f"Flink ended in the middle of {form}:\n{self._log.read_text(errors='replace')[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(30)


def class_path() -> str:
    """Flink's jars, Hadoop's from Spark, and our program, compiled. Fetched and compiled at the first call."""
    jars = _jars()
    hadoop = [str(jar) for jar in sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))]
    source = HERE / "FlinkJoin.java"
    compiled = _cache() / f"flink-classes-{_digest(source, HERE / 'pom.xml')}"
    path = [f"{jars}/*", *hadoop]
    if not compiled.exists():
        fresh = compiled.with_name(f"{compiled.name}.{os.getpid()}")
        command = [str(_jdk() / "bin" / "javac"), "-cp", os.pathsep.join(path), "-d", str(fresh), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        if done.returncode != 0:
            raise FlinkFailed(f"{source.name} does not compile:\n{(done.stdout + done.stderr)[-2000:]}")
        fresh.rename(compiled)
    return os.pathsep.join([str(compiled), *path])


def _jars() -> Path:
    given = os.environ.get(JARS_VARIABLE)
    if given is not None:
        if not any(Path(given).glob("flink-*.jar")):
            raise FlinkMissing(f"{JARS_VARIABLE} = {given!r}: there are no jars of Flink. Put them there, or unset it.")
        return Path(given)
    listed = HERE / "pom.xml"
    target = _cache() / f"flink-{_digest(listed)}"
    if not target.exists():
        try:
            fetch(listed, target, f"Or put the jars into a directory and name it in {JARS_VARIABLE}.")
        except JarsMissing as error:
            raise FlinkMissing(str(error)) from None
    return target


def _jdk() -> Path:
    """A JDK: a Java that can compile."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("javac")
    if found is not None:
        homes.append(Path(found).resolve().parents[1])
    for home in homes:
        if (home / "bin" / "javac").exists():
            return home
    raise FlinkMissing(
        "Flink's program is compiled with a JDK, and there is none. Install one, or set JAVA_HOME to it."
    )


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"
    base.mkdir(parents=True, exist_ok=True)
    return base


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
