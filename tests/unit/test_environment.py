"""Options from the environment, the table of them in the docs, and secrets that no command line takes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from commands.cli import build_parser, main
from commands.environment import fill_in_options, settings
from trimtab import redis_access
from trimtab.errors import InvalidInput

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
BEGIN, END = "<!-- options -->\n", "<!-- end of options -->"


def parsed(arguments: list[str], **environ: str) -> argparse.Namespace:
    parser = build_parser()
    fill_in_options(parser, arguments, environ)
    return parser.parse_args(arguments)


def test_options_come_from_the_environment_and_the_command_line_comes_first() -> None:
    environ = {
        "TRIMTAB_SERVE_PORT": "9000",
        "TRIMTAB_SERVE_HOST": "0.0.0.0",
        "TRIMTAB_SERVE_KEYS": "/etc/keys",
        "TRIMTAB_SERVE_NO_ACCESS_LOG": "true",
        "TRIMTAB_RUN_DURATION": "60s",
        "TRIMTAB_QUERY": "orders",
    }
    options = parsed(["serve", "--host", "::1"], **environ)
    assert (options.port, options.host, options.keys) == (9000, "::1", Path("/etc/keys"))
    assert options.access_log is False
    assert parsed(["run", "query.yaml"], **environ).duration == 60
    # A required option may come from there too.
    assert parsed(["drain", "--worker", "1"], **environ).query == "orders"
    assert parsed(["auto", "on"], TRIMTAB_AUTO_SET="a=1, b=2", TRIMTAB_QUERY="q").set == ["a=1", "b=2"]
    assert parsed(["keys", "create"], TRIMTAB_KEYS_CREATE_NAME="me").name == "me"
    assert parsed(["serve"], TRIMTAB_SERVE_NO_ACCESS_LOG="no").access_log is True


@pytest.mark.parametrize(
    ("arguments", "name", "value", "problem"),
    [
        (["serve"], "TRIMTAB_SERVE_PORT", "tcp://10.0.0.1:80", "is not a port: use 0 to 65535"),
        (["serve"], "TRIMTAB_SERVE_NO_ACCESS_LOG", "maybe", "is neither true nor false"),
        (["run", "x"], "TRIMTAB_RUN_DURATION", "-1", "not"),
        (["propose", "--query", "q"], "TRIMTAB_PROPOSE_POLICY", "best", "is not known"),
        (["propose", "--query", "q"], "TRIMTAB_PROPOSE_WORKER", "one", "is not what the option takes"),
    ],
)
def test_a_bad_variable_is_named(arguments: list[str], name: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed(arguments, **{name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
    assert problem in caught.value.problem
    assert "docs/configuration.md" in caught.value.remedy


def test_a_variable_of_another_command_is_left_alone() -> None:
    assert parsed(["serve"], TRIMTAB_RUN_DURATION="nonsense").port == 8765


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["queries", "--key", "trimtab_canary"], "TRIMTAB_KEY"),
        (["serve", "--redis", "redis://me:canary@host/0"], "TRIMTAB_REDIS_PASSWORD_FILE"),
        (["keys", "list", "--redis", "redis://:canary@host/0"], "TRIMTAB_REDIS"),
        (["reports", "--query", "q", "--redis", "redis://:canary@host/0"], "TRIMTAB_REDIS"),
    ],
)
def test_no_secret_is_taken_from_a_command_line(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert hint in said and "can see" in said
    assert "canary" not in said


def test_bad_credentials_are_named(tmp_path: Path) -> None:
    def refused(**environ: str) -> str:
        with pytest.raises(InvalidInput) as caught:
            redis_access.connection_options("rediss://localhost:6379/0", environ=environ)
        return str(caught.value)

    assert refused(TRIMTAB_REDIS_USER="me").startswith("TRIMTAB_REDIS_USER = 'me': has no password. Set ")
    assert "is not a file" in refused(TRIMTAB_REDIS_PASSWORD_FILE=str(tmp_path / "nothing"))
    assert "is not a file" in refused(TRIMTAB_REDIS_CA_FILE=str(tmp_path))
    both = refused(TRIMTAB_REDIS_PASSWORD="canary", TRIMTAB_REDIS_PASSWORD_FILE="/x")
    assert "cannot be combined with TRIMTAB_REDIS_PASSWORD" in both
    assert "canary" not in both


def table() -> str:
    """One line for each variable."""
    rows: dict[str, list[str]] = {}
    for each in settings(build_parser()):
        rows.setdefault(each.variable, []).append(f"`{each.command} {each.option}`")
    lines = ["| variable | option |", "|---|---|"]
    for name in sorted(rows):
        options = rows[name] if len(rows[name]) <= 3 else [f"`{rows[name][0].split()[-1]} of every command that has it"]
        lines.append(f"| `{name}` | {', '.join(options)} |")
    return "\n".join(lines) + "\n"


def test_the_page_lists_every_variable(rewrite: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    shown, _, tail = rest.partition(END)
    if rewrite:
        PAGE.write_text(f"{head}{BEGIN}{table()}{END}{tail}", encoding="utf-8")
    else:
        assert shown == table(), "write it anew: pytest tests/unit/test_environment.py --rewrite"
    for name in (value for value in vars(redis_access).values() if isinstance(value, str)):
        if name.startswith("TRIMTAB_"):
            assert f"`{name}`" in head + tail, name
