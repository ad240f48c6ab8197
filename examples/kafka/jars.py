"""Fetches jars with Maven, once, into artifacts/kafka: a server (broker.xml) and Spark's connector (connector.xml)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parents[1] / "artifacts" / "kafka"
CACHE_VARIABLE: Final = "TRIMTAB_KAFKA_JARS"
"""A directory with `broker/*.jar` and `connector/*.jar`, in place of ours."""
WAIT_S: Final = 1200


class JarsMissing(Exception):
    """The jars are not there and cannot be fetched."""


def jars(name: Literal["broker", "connector"]) -> list[Path]:
    """The jars of a server, or of Spark's connector."""
    given = os.environ.get(CACHE_VARIABLE)
    if given is not None:
        found = sorted((Path(given) / name).glob("*.jar"))
        if not found:
            raise JarsMissing(
                f"{CACHE_VARIABLE} = {given!r}: there are no jars in {name}/. Put them there, or unset it."
            )
        return found
    listed = HERE / f"{name}.xml"
    # Named after what is listed: another list is another directory.
    target = CACHE / f"{name}-{hashlib.sha256(listed.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        fetch(listed, target, f"Put the jars into a directory and name it in {CACHE_VARIABLE}.")
    return sorted(target.glob("*.jar"))


def fetch(listed: Path, target: Path, otherwise: str) -> None:
    """What a Maven file lists, as jars in a directory. `otherwise` says what to do where there is no Maven."""
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsMissing(
            f"The jars listed in {listed} are fetched with Maven, and there is no `mvn` on the PATH. Install Maven. "
            f"{otherwise}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, and Maven's own files stay out of our sources.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        shutil.copyfile(listed, Path(scratch) / "pom.xml")
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=WAIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise JarsMissing(f"Maven did not fetch the jars of {listed.name} within {WAIT_S} s.") from None
        if done.returncode != 0:
            raise JarsMissing(f"Maven cannot fetch the jars of {listed.name}:\n{(done.stdout + done.stderr)[-1500:]}")
        if not target.exists():
            (Path(scratch) / "jars").rename(target)
