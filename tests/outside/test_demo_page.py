"""`make run ARGS="--hold"` in a browser: skew, a proposal, steps that light up, level load, a heat map with arrows."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.outside.browser import SCHEMES
from tests.outside.running import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.pictures]

START_MS: Final = 240_000
END_S: Final = 120
Picture = Callable[[Any, str], None]


@contextmanager
def demo(*options: str) -> Iterator[str]:
    """The demo as people start it; the address that it prints. Ctrl-C ends it in order."""
    command = [sys.executable, "-u", "-m", "commands.demo", "--hold", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        yield next(line.strip() for line in process.stdout if "#ticket=" in line)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=END_S)
        assert process.returncode == 0, said[-3000:]
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=END_S)


def test_the_demos_rebalance_is_seen(browser: Browser, picture: Picture) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 950})
    with demo("--no-balance", "--rows", "6000") as address:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.get_by_role("link", name="demo", exact=True).click(timeout=START_MS)
        wait_for(lambda: page.locator(".worker.hot").count() > 0, "the skew is seen", START_MS / 1000)
        page.wait_for_timeout(45_000)  # for columns of the heat map
        before = _ratio(page)
        _propose(page, picture)
        page.get_by_role("button", name="Execute this proposal").click()
        page.wait_for_selector(".steps li.current", timeout=60_000)
        page.wait_for_selector(".toast", state="detached")
        page.wait_for_selector(".steps li:nth-child(2).done", timeout=60_000)
        _both(page, picture, "overview")
        chips = page.locator(".move .chip")
        wait_for(lambda: all(each == "committed" for each in chips.all_inner_texts()), "the moves end", 180)
        expect(page.locator(".move .good-text")).not_to_have_count(0)
        wait_for(lambda: _ratio(page) < before, "the load is more level", 120)
        page.wait_for_timeout(30_000)
        _look_around(page, picture)
        assert errors == []
    context.close()


def _ratio(page: Page) -> float:
    return float(page.locator(".imbalance .tile-value").inner_text())


def _propose(page: Page, picture: Picture) -> None:
    """What if at most 20 MB were moved? Then the proposal without a limit."""
    page.get_by_role("link", name="Propose a rebalance").click()
    page.wait_for_selector(".execute")
    first = page.url
    page.get_by_label("Budget").press("ArrowLeft")
    page.wait_for_url(lambda url: url != first)  # a slider makes a new proposal
    page.get_by_label("Reason").fill("one worker has most of the load")
    _both(page, picture, "proposal")


def _look_around(page: Page, picture: Picture) -> None:
    page.get_by_role("link", name="Heat map").click()
    page.wait_for_selector(".heat[data-drawn]")
    page.get_by_label("partition groups by time").hover(position={"x": 250, "y": 180})
    expect(page.locator(".heat table").first).to_contain_text("committed")
    _both(page, picture, "heat")
    page.get_by_role("link", name="History").click()
    expect(page.locator(".comparison")).not_to_have_count(0)
    _both(page, picture, "history")
    for name in ("Plans", "Partitions", "Events"):
        page.get_by_role("link", name=name).click()
        page.wait_for_timeout(1500)
        _both(page, picture, name.lower())


def _both(page: Page, picture: Picture, name: str) -> None:
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        picture(page, f"{name}-{scheme}")
    page.emulate_media(color_scheme="light")
