"""Commands as a person would type them, with what they print: the transcript. A command that fails ends it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.chart.tools import CHART, tool

ROOT: Final = Path(__file__).parents[2]
STARTED: Final = time.monotonic()
PATIENCE_S: Final = 900
"""Long: a machine may be busy. Nothing here is a matter of time."""


class Failed(Exception):
    """The story does not go on; the text says why."""


class Story:
    """helm, kubectl and trimtab, against the cluster."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._environ = {
            "PATH": os.defpath,
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "150",
            "NO_COLOR": "1",
        }

    def title(self, text: str) -> None:
        tell(f"\n=== {text}")

    def helm(self, *arguments: str) -> str:
        return self._run([tool("helm")], "helm", arguments)

    def kubectl(self, *arguments: str, shown: bool = True, tried: bool = False) -> str:
        return self._run([tool("kubectl")], "kubectl", arguments, shown=shown, tried=tried)

    def trimtab(self, *arguments: str, environ: Mapping[str, str]) -> str:
        return self._run([sys.executable, "-m", "commands.cli"], "trimtab", arguments, environ)

    def apply(self, text: str) -> None:
        """Quietly: what is needed beforehand."""
        command = [tool("kubectl"), "apply", "--server-side", "-f", "-"]
        done = subprocess.run(command, env=self._environ, input=text, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise Failed(done.stderr)

    def secret(self, namespace: str, name: str, entry: str) -> str:
        """One entry of a Secret, which is not printed."""
        template = f'go-template={{{{ index .data "{entry}" | base64decode }}}}'
        return self.kubectl("--namespace", namespace, "get", "secret", name, "-o", template, shown=False)

    def _run(
        self,
        program: list[str],
        name: str,
        arguments: tuple[str, ...],
        environ: Mapping[str, str] | None = None,
        *,
        shown: bool = True,
        tried: bool = False,
    ) -> str:
        """What it prints. `tried`: it may fail."""
        text = shlex.join([name, *arguments]).replace(str(CHART), "deploy/helm/trimtab").replace(f"{ROOT}/", "")
        if shown:
            tell(f"$ {text}")
        begun = time.monotonic()
        command = [*program, *arguments]
        done = subprocess.run(
            command, env={**self._environ, **(environ or {})}, text=True, capture_output=True, check=False, timeout=1800
        )
        said = done.stdout + (done.stderr if done.returncode != 0 else "")
        if shown:
            for line in said.rstrip().splitlines():
                tell(f"    {line}")
            tell(f"    ({time.monotonic() - begun:.1f} s)")
        if done.returncode != 0 and not tried:
            raise Failed(f"{text}: exit code {done.returncode}{'' if shown else said}")
        return said


def tell(text: str) -> None:
    print(text, flush=True)


def confirm(fact: str, holds: bool) -> None:
    """A fact that has to hold, in the transcript."""
    tell(f"  {'ok ' if holds else 'NOT'} {fact}")
    if not holds:
        raise Failed(fact)


def wait_until(fact: str, holds: Callable[[], bool]) -> None:
    """For a fact that will hold soon."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > PATIENCE_S:
            raise Failed(f"after {PATIENCE_S} s it is not so: {fact}")
        time.sleep(0.5)
    confirm(f"{fact} (after {time.monotonic() - begun:.1f} s)", True)
