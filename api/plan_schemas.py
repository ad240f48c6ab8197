"""What may be sent about plans: every field with its meaning, its bounds and an example."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from api.schemas import NUMBER_MAX, Body, Budget, Mutation, Worker
from balancing.words import PlanStrategyAsked
from trimtab.errors import InvalidInput

PLAN_LENGTH_MAX = 2_000


PlanText = Annotated[str, Field(min_length=1, max_length=PLAN_LENGTH_MAX)]
Rate = Annotated[float, Field(ge=0, le=NUMBER_MAX)]


class ReplanBody(Mutation):
    """`{"worker": 3}`: to the plan that the optimiser would choose. With `plan`: to that one."""

    worker: Worker
    plan: PlanText | None = Field(None, description="A tree over all streams; without it the optimiser's choice.")
    strategy: PlanStrategyAsked = Field(
        "auto",
        description="`ms` moves state, `hybmig` runs both plans; `auto` chooses by their forecasts, and says why.",
    )
    budget: Budget = Field(
        None,
        description="What a batch may spend on it; null for the balancer's setting.",
        examples=["100ms"],
    )
    dry_run: bool = Field(False, description="Only say what would be done, and what it would cost.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"worker": 3},
                {"worker": 3, "plan": "((B C) A)", "strategy": "hybmig", "reason": "C became slow"},
                {"worker": 3, "dry_run": True},
            ]
        }
    )


class PlanQuestion(Body):
    """What the optimiser would choose for a worker, also under other rates and limits."""

    worker: Worker
    rates: dict[Annotated[str, Field(max_length=100)], Rate] = Field(
        {}, max_length=64, description="Stream -> rows per second at this worker, instead of those measured."
    )
    cpu: float | None = Field(None, description="CPU seconds per second that there are.")
    memory_bytes: float | None = Field(None, description="Bytes that there are for state.")

    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": 3}, {"worker": 3, "rates": {"B": 5.0}}]})

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        for name, value, example in (("cpu", self.cpu, "1.0"), ("memory_bytes", self.memory_bytes, "3e8")):
            if value is not None and not value > 0:
                raise InvalidInput(name, value, "is not positive", f"Give what there is, such as {example}, or null.")
        return self
