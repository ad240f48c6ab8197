"""What tests of the outside share. They are run by `make test-outside`, not by `make test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser

from tests.outside.browser import axe_source, launched

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = "TRIMTAB_PICTURES"
"""Directory for the screenshots; `make pictures` names docs/images."""


def pytest_configure(config: pytest.Config) -> None:
    # Playwright runs its loop in a greenlet, from which Python 3.11 cannot parse sources (ast, "recursion depth
    # mismatch"): pytest's own tracebacks would end the session instead of telling what failed.
    config.option.tbstyle = "native"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_source()


@pytest.fixture(scope="session")
def picture() -> Callable[[Any, str], None]:
    """Take a screenshot of a page under a name."""
    directory = Path(os.environ.get(PICTURES) or ROOT / "artifacts" / "pictures")
    directory.mkdir(parents=True, exist_ok=True)

    def take(page: Any, name: str) -> None:
        page.screenshot(path=directory / f"{name}.png", animations="disabled")

    return take
