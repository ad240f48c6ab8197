"""`trimtab top`: the front page in a terminal. Here is what touches the terminal; top_screen.py says what is shown."""

from __future__ import annotations

import argparse
import contextlib
import curses
import json
import locale
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from commands.remote.client import Client, RemoteFailure, from_options
from commands.remote.top_screen import Line, Style, View, screen, text_of
from commands.remote.watching import Watching

FIRST_S: Final = 20.0
LOOK_MS: Final = 100
PLAIN_WIDTH: Final = 120
PLAIN_HEIGHT: Final = 60
_KEYS: Final = {
    ord("s"): "sort",
    curses.KEY_UP: "up",
    ord("k"): "up",
    curses.KEY_DOWN: "down",
    ord("j"): "down",
    curses.KEY_ENTER: "open",
    ord("\n"): "open",
    ord("\r"): "open",
    curses.KEY_RIGHT: "open",
    27: "back",
    ord("b"): "back",
    curses.KEY_LEFT: "back",
    curses.KEY_BACKSPACE: "back",
}
_COLOURS: Final[dict[Style, int]] = {"bad": curses.COLOR_RED, "good": curses.COLOR_GREEN, "moving": curses.COLOR_CYAN}


def top(options: argparse.Namespace) -> int:
    def connect() -> Client:
        return from_options(options.url, options.key_file)

    with contextlib.closing(connect()) as client:
        names = [options.query] if options.query else client.queries()
        if not names:
            raise RemoteFailure("the server has no query: does it use the same Redis as the query?")
        if options.json:
            from commands.remote.client import at

            print(json.dumps(client.get(f"{at(names[0])}/front"), indent=1))
            return 0
    watching = _watch(connect, names[0])
    watching.first(FIRST_S)
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        sight = watching.sight
        watching.end()
        if sight.document is None:
            raise RemoteFailure(sight.problem)
        print(text_of(screen(sight, View(), PLAIN_WIDTH, PLAIN_HEIGHT, _now_ms())[:-1]))
        return 0
    locale.setlocale(locale.LC_ALL, "")
    with contextlib.suppress(KeyboardInterrupt):
        curses.wrapper(lambda terminal: _Terminal(terminal, connect, names, watching).run())
    return 0


def _watch(connect: Any, query: str) -> Watching:
    watching = Watching(connect, query)
    watching.start()
    return watching


class _Terminal:
    def __init__(self, terminal: curses.window, connect: Any, names: Sequence[str], watching: Watching) -> None:
        self._terminal, self._connect, self._names, self._watching = terminal, connect, list(names), watching
        self._view = View()
        self._styles = _styles()

    def run(self) -> None:
        terminal = self._terminal
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        curses.set_escdelay(25)
        terminal.timeout(LOOK_MS)
        shown: tuple[Any, ...] = ()
        while True:
            if self._watching.refusal is not None:
                raise self._watching.refusal
            sight = self._watching.sight
            height, width = terminal.getmaxyx()
            # What is not live says for how long: once a second.
            state = (sight.version, self._view, height, width, bool(sight.problem) and int(time.time()))
            if state != shown:
                shown = state
                self._draw(screen(sight, self._view, width, height, _now_ms()))
            key = terminal.getch()
            if key == ord("q"):
                self._watching.end()
                return
            if key == ord("n"):
                self._next()
            elif key in _KEYS:
                self._view = self._view.key(_KEYS[key], sight.document)

    def _next(self) -> None:
        if len(self._names) > 1:
            self._watching.end()
            place = self._names.index(self._watching.query)
            self._watching = _watch(self._connect, self._names[(place + 1) % len(self._names)])
            self._view = View(sort=self._view.sort)

    def _draw(self, lines: Sequence[Line]) -> None:
        self._terminal.erase()
        for row, line in enumerate(lines):
            # The last cell of a screen cannot be written: curses says so after it has done it.
            with contextlib.suppress(curses.error):
                self._terminal.move(row, 0)
                for text, style in line:
                    self._terminal.addstr(text, self._styles.get(style, 0))
        self._terminal.refresh()


def _styles() -> dict[Style, int]:
    styles: dict[Style, int] = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "chosen": curses.A_REVERSE}
    if not curses.has_colors():
        return styles | {"bad": curses.A_BOLD}
    with contextlib.suppress(curses.error):
        curses.use_default_colors()
    for number, (style, colour) in enumerate(_COLOURS.items(), 1):
        with contextlib.suppress(curses.error):
            curses.init_pair(number, colour, -1)
            styles[style] = curses.color_pair(number)
    return styles


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
