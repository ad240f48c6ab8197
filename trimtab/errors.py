"""Errors that carry data: the field, its value, what is wrong and what to do about it."""

from __future__ import annotations


class TrimtabError(Exception):
    """Base of every error that Trimtab raises on purpose."""


class InvalidInput(TrimtabError, ValueError):
    """Something the user gave is wrong; nothing was started and nothing was changed."""

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field} = {value!r}: {problem}. {remedy}")

    def at(self, field: str) -> InvalidInput:
        """The same complaint about a field that goes by another name where the user looks."""
        return type(self)(field, self.value, self.problem, self.remedy)

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, object, str, str]]:
        # Errors cross process boundaries; the default way would lose the fields.
        return type(self), (self.field, self.value, self.problem, self.remedy)


class CheckpointMismatch(InvalidInput):
    """A checkpoint belongs to another query, or to an earlier shape of this one."""


class RedisUnreachable(InvalidInput):
    """Redis did not answer when a query was to be started."""


class BindingError(TrimtabError):
    """A running batch could not be tied to its epoch: running on would risk a wrong result."""


class CorruptState(TrimtabError):
    """Stored bytes are not what was written: length, checksum or schema differ."""
