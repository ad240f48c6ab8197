"""Every option also as an environment variable: for images and charts, where a command line is the wrong place.

The variable of an option is TRIMTAB_, the command, the option: `trimtab serve --tls-cert` is TRIMTAB_SERVE_TLS_CERT.
Options that mean the same in every command have one variable for all. An option on the command line comes first.
docs/configuration.md has the table; a test compares it with the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.defaults import KEY_FILE_VARIABLE, QUERY_VARIABLE, REDIS_VARIABLE, URL_VARIABLE
from trimtab.errors import InvalidInput

SHARED: Final = {
    "--redis": REDIS_VARIABLE,
    "--url": URL_VARIABLE,
    "--key-file": KEY_FILE_VARIABLE,
    "--query": QUERY_VARIABLE,
}
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One option of one command, and its variable."""

    command: str
    option: str
    variable: str
    help: str


def settings(parser: argparse.ArgumentParser, command: tuple[str, ...] = ()) -> Iterator[Setting]:
    """All options of a parser and of those below it."""
    for action in _options(parser):
        option = _option(action)
        yield Setting(
            command=" ".join(command), option=option, variable=variable_of(command, option), help=action.help or ""
        )
    for name, below in _commands(parser).items():
        yield from settings(below, (*command, name))


def variable_of(command: Sequence[str], option: str) -> str:
    shared = SHARED.get(option)
    words = "_".join((*command, option.removeprefix("--"))).replace("-", "_").upper()
    return shared or f"TRIMTAB_{words}"


def fill_in_options(parser: argparse.ArgumentParser, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Make the variables of the command in `arguments` the defaults of its options."""
    command: tuple[str, ...] = ()
    for word in arguments:
        below = _commands(parser).get(word)
        if below is not None:
            parser, command = below, (*command, word)
        elif not word.startswith("-"):
            break
    for action in _options(parser):
        variable = variable_of(command, _option(action))
        text = environ.get(variable, "").strip()
        # A URL of Redis may have a password, so it is taken from the environment where it is used, unchecked.
        if text and _option(action) not in ("--redis", "--url"):
            parser.set_defaults(**{action.dest: _value(action, variable, text, " ".join(command))})
            action.required = False


def _value(action: argparse.Action, variable: str, text: str, command: str) -> Any:
    remedy = f"It stands for {_option(action)} of `trimtab {command}`; docs/configuration.md lists all variables."
    if action.nargs == 0:
        if text.lower() not in (*_YES, *_NO):
            raise InvalidInput(variable, text, "is neither true nor false", remedy)
        given = text.lower() in _YES
        return action.const if given else not action.const
    texts = [part.strip() for part in text.split(",")] if isinstance(action.default, list) else [text]
    values = [_converted(action, variable, each, remedy) for each in texts]
    return values if isinstance(action.default, list) else values[0]


def _converted(action: argparse.Action, variable: str, text: str, remedy: str) -> Any:
    try:
        value = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        problem = str(error) if isinstance(error, argparse.ArgumentTypeError) else "is not what the option takes"
        raise InvalidInput(variable, text, problem.removeprefix(f"{text!r} "), remedy) from None
    if action.choices is not None and value not in action.choices:
        raise InvalidInput(
            variable, text, "is not known", f"Use one of {', '.join(map(str, action.choices))}. {remedy}"
        )
    return value


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS and action.dest not in ("help", "version")
    ]


def _option(action: argparse.Action) -> str:
    return next(name for name in action.option_strings if name.startswith("--"))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
