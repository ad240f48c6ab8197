"""The two ways a join condition can fail: as it is read, and as it is computed."""

from __future__ import annotations

from trimtab.errors import InvalidInput


class ConditionError(InvalidInput):
    """A condition that cannot be accepted, told so that its author can mend it without reading our code."""


class Unreadable(ConditionError):
    """A condition that does not parse here. Spark's own parser may know better."""


class EvaluationError(ArithmeticError):
    """A value for which Spark in ANSI mode raises; `error_class` is the name Spark gives to that error."""

    def __init__(self, error_class: str, detail: str) -> None:
        self.error_class = error_class
        self.detail = detail
        super().__init__(f"[{error_class}] {detail}")

    def __reduce__(self) -> tuple[type[EvaluationError], tuple[str, str]]:
        """Raised on workers and reported on the driver, so it must survive pickling."""
        return (EvaluationError, (self.error_class, self.detail))
