"""The cause of a failure in a few lines: the innermost of Spark's exceptions, without the JVM's stack."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_JVM_FRAME = re.compile(r"^\s+at [\w.$]+[.(/]|^\s*\.\.\. \d+ more$")
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^(?:[a-z][\w$]*\.)+([A-Z][\w$]*): ")
_SPARKS_OWN = re.compile(r"^\s*(SQLSTATE:|=== )")
"""What Spark adds below the message of an error in Python."""
_LINES_MAX = 12


def root_cause(error: BaseException) -> str:
    """The message that says why, for an exception from PySpark or from anywhere else."""
    # A captured exception has the whole text; its __str__ may ask a JVM that has ended.
    text = getattr(error, "_desc", None) or _text(error)
    stack = getattr(error, "_stackTrace", None) or ""
    return root_cause_of_text(str(text), str(stack)) or type(error).__name__


def innermost_cause(error: BaseException) -> str:
    """The last "Caused by" of a Java exception, as "Class: message"; else what `root_cause` says."""
    return _last_cause(getattr(error, "_stackTrace", None) or str(error)) or root_cause(error)


def root_cause_of_text(text: str, stack: str = "") -> str:
    """The innermost Python error; else the last "Caused by" of `stack`; else the message in `text`."""
    if _TRACEBACK in text:
        return _python_error(text)
    if _TRACEBACK in stack:
        return _python_error(stack)
    message = _without_frames(text.partition("JVM stacktrace:")[0])
    # That message only says that the query ended: the innermost cause says why.
    return (_last_cause(stack) if "[STREAM_FAILED]" in message else "") or message


def _last_cause(stack: str) -> str:
    """The last "Caused by", as "Class: message"; nothing where there is none."""
    causes = _CAUSED_BY.findall(stack)
    return _JAVA_CLASS.sub(r"\1: ", causes[-1].strip()) if causes else ""


def _python_error(text: str) -> str:
    """The last line of the last traceback, and the lines that continue the error's message."""
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    message: list[str] = []
    for line in lines:
        if message and (not line.strip() or _JVM_FRAME.match(line) or _SPARKS_OWN.match(line)):
            break
        if message or (line.strip() and not line[0].isspace()):
            message.append(line.rstrip())
    return "\n".join(message[:_LINES_MAX]) or _without_frames(text)


def _without_frames(text: str) -> str:
    lines = [line.rstrip() for line in text.strip().splitlines() if not _JVM_FRAME.match(line)]
    cut = next((index for index, line in enumerate(lines) if line.startswith(("== ", "=== "))), len(lines))
    return "\n".join(lines[: min(cut, _LINES_MAX)]).strip()


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            return str(java.toString())
        except Exception:  # the JVM has ended, so the cause is lost
            return "the JVM ended"
    return str(error)
