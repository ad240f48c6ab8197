"""Copies rules and dashboard into the chart: helm packages only what lies in its own directory.

python deploy/helm/sync.py            copy
python deploy/helm/sync.py --check    say which copies differ, and change nothing
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

DEPLOY: Final = Path(__file__).resolve().parents[1]
FILES: Final = DEPLOY / "helm/trimtab/files"


def pairs() -> dict[Path, Path]:
    """Original -> copy, for all that there are."""
    found = {path: FILES / "prometheus" / path.name for path in sorted((DEPLOY / "prometheus").glob("*.yml"))}
    dashboard = DEPLOY / "grafana/trimtab.json"
    return {**found, **({dashboard: FILES / "grafana/trimtab.json"} if dashboard.exists() else {})}


def differing() -> list[str]:
    """Copies that are missing, old, or of nothing."""
    wanted = pairs()
    stale = [
        copy for original, copy in wanted.items() if not copy.exists() or copy.read_bytes() != original.read_bytes()
    ]
    present = [*(FILES / "prometheus").glob("*"), *(FILES / "grafana").glob("*")]
    return sorted(str(path.relative_to(DEPLOY)) for path in {*stale, *(set(present) - set(wanted.values()))})


def copy_all() -> None:
    for folder in ("prometheus", "grafana"):
        shutil.rmtree(FILES / folder, ignore_errors=True)
    for original, copy in pairs().items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, copy)


def main() -> int:
    if "--check" not in sys.argv:
        copy_all()
    for name in differing():
        print(f"deploy/{name} is not a copy of its original: python deploy/helm/sync.py")
    return 1 if differing() else 0


if __name__ == "__main__":
    sys.exit(main())
