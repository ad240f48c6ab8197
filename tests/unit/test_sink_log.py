"""A batch that the file sink has finished and Spark has not is written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.runner.sink_log import supersede_unfinished


def write(root: Path, *names: str) -> str:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")
    return str(root)


@pytest.mark.parametrize("name", ["7", "7.compact"])
def test_an_entry_of_an_unfinished_batch_is_put_aside(tmp_path: Path, name: str) -> None:
    checkpoint = write(tmp_path / "checkpoint", "offsets/6", "offsets/7", "commits/6")
    output = write(tmp_path / "out", "_spark_metadata/6", f"_spark_metadata/{name}", f"_spark_metadata/.{name}.crc")
    assert supersede_unfinished(checkpoint, output) == 7
    left = sorted(path.name for path in (tmp_path / "out" / "_spark_metadata").iterdir())
    assert left == sorted(["6", f".{name}.superseded"])
    assert supersede_unfinished(checkpoint, output) is None


@pytest.mark.parametrize(
    ("checkpoint", "output"),
    [
        (["offsets/6", "commits/6"], ["_spark_metadata/6"]),
        (["offsets/6", "offsets/7", "commits/6"], ["_spark_metadata/6"]),
        (["offsets/0"], []),
        ([], []),
    ],
    ids=["all finished", "not written yet", "no output yet", "never started"],
)
def test_everything_else_is_left_alone(tmp_path: Path, checkpoint: list[str], output: list[str]) -> None:
    location = write(tmp_path / "checkpoint", *checkpoint)
    assert supersede_unfinished(location, write(tmp_path / "out", *output)) is None
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*/*")) == output
