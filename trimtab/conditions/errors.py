"""The two ways a join condition can fail: as it is read, and as it is computed."""

from __future__ import annotations


class ConditionError(ValueError):
    """A condition that cannot be accepted, told so that its author can mend it without reading our code."""

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field}: {problem} (given: {value!r}). {remedy}")

    def __reduce__(self) -> tuple[type[ConditionError], tuple[str, object, str, str]]:
        """Errors cross process boundaries in a service; the default pickling would lose the fields."""
        return (ConditionError, (self.field, self.value, self.problem, self.remedy))


class EvaluationError(ArithmeticError):
    """A value for which Spark in ANSI mode raises; `error_class` is the name Spark gives to that error."""

    def __init__(self, error_class: str, detail: str) -> None:
        self.error_class = error_class
        self.detail = detail
        super().__init__(f"[{error_class}] {detail}")

    def __reduce__(self) -> tuple[type[EvaluationError], tuple[str, str]]:
        """Raised on workers and reported on the driver, so it must survive pickling."""
        return (EvaluationError, (self.error_class, self.detail))
