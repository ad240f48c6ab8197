"""The entry for spark-submit: the same query.yaml, on a cluster that spark-submit knows how to reach.

`trimtab archive DIR` writes the two files that are needed, this one and the packages, and prints the call:

    spark-submit --master yarn --py-files DIR/trimtab-<digest>.zip DIR/submit.py query.yaml [--check ...]

The third-party dependencies (pyarrow, pandas, numba, protobuf, pydantic, sqlglot, redis, pyyaml, rich) must
be there for the driver's and the executors' Python: in the image, or in an environment shipped with
`--archives`. The file's `spark.master` is ignored with a note, since spark-submit has chosen one;
`spark.config` is applied to the session, so settings that a JVM takes only at its start (memory, cores,
packages) belong on spark-submit's command line.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    # Python put this file's directory first on the path, where our modules would hide others of the same name.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here or entry.endswith(".zip")]
    from commands.cli import main as command

    return command(["run", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
