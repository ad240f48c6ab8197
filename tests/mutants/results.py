"""What came of each mutant: kept in a file of JSON lines, so that a long run can go on, and summed up in the end."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.mutants.sites import Mutant

Outcome = Literal["killed", "timed out", "survived"]

EXPLAINED: Final = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """On one mutant."""

    id: str
    outcome: Outcome
    test: str
    """That killed it; of one that survived, how many were run."""
    seconds: float
    """Of the processor."""
    module: str
    """Digest of the module's text."""
    tree: str
    """Digest of all code and tests."""


def digest_of(root: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class Tree:
    """All code and tests, as they are now."""

    def __init__(self, root: Path) -> None:
        packages = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
        suffixes = (".py", ".txt", ".toml", ".yaml")
        files = {file for package in packages for file in package.rglob("*") if file.suffix in suffixes}
        files -= {file for file in files if file.name == EXPLAINED.name}
        self._root = root
        self.digest = digest_of(root, files)
        """Of everything that can change what becomes of a mutant."""
        self._without_tests = digest_of(root, (file for file in files if not _has_tests(file)))

    def digest_for(self, name: str) -> str:
        """Of what can change how the tests of a file run: all but the other files with tests."""
        file = self._root / name
        return f"{self._without_tests}-{digest_of(self._root, [file])}" if file.is_file() else self.digest


def _has_tests(file: Path) -> bool:
    return file.name.startswith("test_") and file.suffix == ".py"


class Kept:
    """The file of a run: verdicts, and the baseline."""

    def __init__(self, path: Path | None, tree: Tree) -> None:
        self._path = path
        self.tree = tree
        self.baseline: dict[str, dict[str, Any]] = {}
        """By file, what its tests did without a mutant."""
        self._verdicts: dict[str, Verdict] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(json.loads(line))

    def _read(self, body: dict[str, Any]) -> None:
        if "baseline" not in body:
            self._verdicts[body["id"]] = Verdict(**body)
        elif body["tree"] == self.tree.digest_for(body["file"]):
            self.baseline[body["file"]] = body["baseline"]

    def verdict(self, mutant: Mutant, module: str) -> Verdict | None:
        """What is known and still holds: a survivor is tried again after any change, a killed one after a change of its
        module only."""
        known = self._verdicts.get(mutant.id)
        if known is None or known.module != module or (known.outcome == "survived" and known.tree != self.tree.digest):
            return None
        return known

    def add(self, verdict: Verdict) -> None:
        self._append(asdict(verdict))

    def add_baseline(self, file: str, tests: dict[str, Any]) -> None:
        self._append({"file": file, "baseline": tests, "tree": self.tree.digest_for(file)})

    def _append(self, body: dict[str, Any]) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(body) + "\n")


def read_explanations(path: Path) -> dict[str, str]:
    """Id -> why no test can kill that mutant, or need not."""
    if not path.exists():
        return {}
    explained = tomllib.loads(path.read_text(encoding="utf-8")).get("explained", {})
    for id_, reason in explained.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"{path}: {id_} has no reason")
    return dict(explained)


def summary(
    mutants: Iterable[Mutant], verdicts: Mapping[str, Verdict], explained: Mapping[str, str], all_ids: Iterable[str]
) -> tuple[list[str], bool]:
    """Lines to print, and whether a survivor is not explained."""
    survivors = [each for each in mutants if each.id in verdicts and verdicts[each.id].outcome == "survived"]
    unexplained = [mutant for mutant in survivors if mutant.id not in explained]
    counts = {name: sum(each.outcome == name for each in verdicts.values()) for name in ("killed", "timed out")}
    lines = [
        f"{len(verdicts)} mutants: {counts['killed']} killed, {counts['timed out']} timed out, "
        f"{len(survivors)} survived ({len(survivors) - len(unexplained)} explained)"
    ]
    for mutant in survivors:
        reason = explained.get(mutant.id)
        lines.append(f"{mutant.module}:{mutant.line}  {'explained: ' + reason if reason else 'SURVIVED'}")
        lines.append(f"  {json.dumps(mutant.id)}  ({verdicts[mutant.id].test})")
    known = set(all_ids)
    for id_ in explained:
        if id_ not in known:
            lines.append(f"stale explanation, there is no such mutant: {json.dumps(id_)}")
        elif id_ in verdicts and verdicts[id_].outcome != "survived":
            lines.append(f"stale explanation, {verdicts[id_].test} kills it: {json.dumps(id_)}")
    return lines, bool(unexplained)
