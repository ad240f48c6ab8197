"""The images, each built once. They are run by `make images` and `make test-outside`, not by `make test`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.images.tools import Image, ToolMissing, build, mounted, prepare

NO_SKIPS: Final = "TRIMTAB_NO_SKIPS"
"""Set in CI: a test that is skipped there is a test that nobody runs."""


def _built(name: str) -> Iterator[Image]:
    try:
        prepare()
    except ToolMissing as missing:
        if os.environ.get(NO_SKIPS):
            pytest.fail(f"{missing} ({NO_SKIPS} is set)")
        pytest.skip(str(missing))
    build(name)
    with mounted(name) as image:
        yield image


@pytest.fixture(scope="session")
def manager_image() -> Iterator[Image]:
    yield from _built("manager")


@pytest.fixture(scope="session")
def spark_image() -> Iterator[Image]:
    yield from _built("spark")
