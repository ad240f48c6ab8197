"""What went wrong in a few lines: the cause at the bottom of Spark's exceptions, without the JVM's stack."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_JVM_FRAME = re.compile(r"^\s+at [\w.$]+[.(/]|^\s*\.\.\. \d+ more$")
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^(?:[a-z][\w$]*\.)+([A-Z][\w$]*): ")
_LINES_MAX = 12


def root_cause(error: BaseException) -> str:
    """The message that says why, for an exception of PySpark's or any other."""
    # The text of a captured exception has the whole of it; __str__ may ask a JVM that is gone.
    text = getattr(error, "_desc", None) or _text(error)
    stack = getattr(error, "_stackTrace", None) or ""
    return root_cause_of_text(str(text), str(stack)) or type(error).__name__


def root_cause_of_text(text: str, stack: str = "") -> str:
    """The innermost Python error; else the last "Caused by" of `stack`; else the message in `text`."""
    if _TRACEBACK in text:
        return _python_error(text)
    if _TRACEBACK in stack:
        return _python_error(stack)
    message = _without_frames(text.partition("JVM stacktrace:")[0])
    causes = _CAUSED_BY.findall(stack)
    if causes and "[STREAM_FAILED]" in message:
        # The message then only says that the query ended: the innermost cause says why.
        return _JAVA_CLASS.sub(r"\1: ", causes[-1].strip())
    return message


def _python_error(text: str) -> str:
    """The last line of the last traceback, and what belongs to the error's message."""
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    kept: list[str] = []
    for line in lines:
        if kept and (not line.strip() or _JVM_FRAME.match(line)):
            break
        if kept or (line.strip() and not line[0].isspace()):
            kept.append(line.rstrip())
    return "\n".join(kept[:_LINES_MAX]) or _without_frames(text)


def _without_frames(text: str) -> str:
    lines = [line.rstrip() for line in text.strip().splitlines() if not _JVM_FRAME.match(line)]
    cut = next((index for index, line in enumerate(lines) if line.startswith(("== ", "=== "))), len(lines))
    return "\n".join(lines[: min(cut, _LINES_MAX)]).strip()


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            return str(java.toString())
        except Exception:  # the JVM is gone, and the cause with it
            return "the JVM ended"
    return str(error)
