"""Rendered once per shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.tools import SHAPES, Manifest, render


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Manifest]]:
    """Manifests by the name of the shape in ci/."""
    directory = tmp_path_factory.mktemp("helm")
    return {path.name.removesuffix("-values.yaml"): render(directory, path) for path in SHAPES}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path
