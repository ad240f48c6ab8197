"""Brings our packages to the executors of a real cluster as one zip file, so that Trimtab need not be installed there.

Executors of `local` and `local-cluster` run the driver's own interpreter and import what the driver imports. They get
no zip: numba finds its cache of compiled kernels by the path of the source, and a zip has another one on each executor.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_PACKAGES: Final = ("trimtab", "split_union", "worker", "plans", "balancing")
"""What tasks import (the import contract of executors lists the same)."""
SUBMIT_PACKAGES: Final = (*EXECUTOR_PACKAGES, "commands")
"""What the driver needs beside that, where spark-submit starts it."""
_ROOT = Path(__file__).resolve().parent.parent
"""Where our packages are: a directory, or the archive itself where spark-submit brought it."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship_packages(spark: SparkSession) -> None:
    """Make our packages importable on the executors, and in the processes that Spark starts beside the driver."""
    if _ROOT.suffix == ".zip":
        # spark-submit has sent it to the executors. Beside the driver Spark 4.3 gives streaming sources and stateful
        # operators no files at all, or looks for them in the wrong folder: they find the archive by their path.
        environment = spark.sparkContext.environment
        known = environment.get("PYTHONPATH", "").split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(_ROOT), *filter(None, known)]))
    elif not str(spark.sparkContext.master).startswith("local"):
        spark.sparkContext.addPyFile(str(build_archive()))


def build_archive(packages: tuple[str, ...] = EXECUTOR_PACKAGES) -> Path:
    """A zip of our sources, the same bytes for the same sources, its name made of their digest."""
    if _ROOT.suffix == ".zip":
        return _ROOT
    sources = sorted(path for name in packages for path in (_ROOT / name).rglob("*.py"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    archive = Path(tempfile.gettempdir()) / f"trimtab-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        with (
            tempfile.NamedTemporaryFile(dir=archive.parent, delete=False) as part,
            zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for path in sources:
                packed.writestr(zipfile.ZipInfo(str(path.relative_to(_ROOT)), _EPOCH), path.read_bytes())
        Path(part.name).rename(archive)
    return archive
