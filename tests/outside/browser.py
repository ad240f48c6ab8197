"""A real browser: Debian's Chromium, driven by Playwright, and axe to look for what some people cannot use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from tests.outside.tools import ToolMissing

Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS: Final = (
    "--no-sandbox",  # root, in CI, has no other way
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP *.far.test 127.0.0.1",
)
FAR: Final = "trimtab.far.test"
"""A name of this machine that the browser takes for another one's: on plain HTTP it does not trust it."""
WAIT_MS: Final = 30_000


def chromium() -> str:
    """The path of a browser; Debian's is installed where that is possible."""
    if (found := _on_path()) is not None:
        return found
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise ToolMissing(
            f"These tests need a browser: none of {', '.join(NAMES)} is on the PATH. Install one (on Debian: "
            "apt-get install chromium), or run `make test-outside` as root on Debian, which installs it."
        )
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        done = subprocess.run([apt, "-q", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolMissing(f"apt-get {command[0]} failed, so there is no browser:\n{done.stderr[-2000:]}")
    if (found := _on_path()) is None:
        raise ToolMissing("Debian's package chromium is installed, but `chromium` is not on the PATH.")
    return found


def _on_path() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page of the browser, and everything that went wrong in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Uncaught errors, and what the content security policy refused."""

    def check(self) -> None:
        assert not self.errors, self.errors

    def go(self, place: str) -> None:
        """A view, by its address after the #."""
        base = self.page.url.partition("#")[0]
        self.page.goto(f"{base}#{place}")

    def until_drawn(self) -> None:
        """Wait for a document of the live stream, and for what follows from it."""
        self.page.wait_for_selector("main[data-updated]:not(.waits)", timeout=WAIT_MS)

    def serious(self, axe: str) -> list[str]:
        """What axe finds that is serious or critical, on the view as it is."""
        self.page.evaluate(axe)
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['impact']} {each['id']}: {each['help']} at {[node['target'] for node in each['nodes']][:5]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]


@contextmanager
def tab(
    browser: Browser,
    url: str,
    key: str,
    *,
    scheme: Scheme = "light",
    size: Sequence[int] = (1440, 950),
    problems_expected: bool = False,
) -> Iterator[Tab]:
    """A page that is opened as people do it: the key typed once. At the end nothing may have gone wrong in it."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        opened = Tab(page)
        page.on("pageerror", lambda error: opened.errors.append(str(error)))
        page.on("console", lambda said: _note(opened, said.type, said.text, problems_expected))
        page.goto(f"{url}/")
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Open").click()
        page.wait_for_selector("main .view h1 >> text=Queries")
        yield opened
        opened.check()
    finally:
        context.close()


def _note(opened: Tab, kind: str, text: str, problems_expected: bool) -> None:
    # 503: Redis did not answer in time, on a loaded machine. The page goes on; whether it does is what tests look at.
    excused = text.startswith("Failed to load resource") and (problems_expected or "status of 503" in text)
    excused |= FAR in opened.page.url and text.startswith("The Cross-Origin-Opener-Policy header has been ignored")
    if kind == "error" and not excused:
        opened.errors.append(text)


def axe_source() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
