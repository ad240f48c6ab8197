"""What may be sent: every field with its meaning, its bounds and an example.

Numbers are strict ("3" is not 3, true is not 1) and unknown fields are refused: a mistyped `max_pause` must not become
a rebalance without a limit.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from balancing.policies import policy_named
from balancing.words import (
    GROUPS_MAX,
    PAUSE_MAX_MS,
    AskedStrategy,
    Balancer,
    Order,
    PolicyName,
    ShareMeasure,
)
from trimtab.durations import parse_us
from trimtab.errors import InvalidInput

NUMBER_MAX = 2**63
"""No field needs more. Beyond it, arithmetic with integers and with floats differs or fails."""


def parse_amount(value: object) -> object:
    """A share of the sender's load: "25%" or 0.25."""
    if value is None:
        return None
    number = value
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            number = None
    # Compared before it is converted: an integer may be larger than any float.
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1:
        raise InvalidInput("amount", value, "is out of range", 'Give more than 0 and at most 100%: "25%" or 0.25.')
    return float(number)


def parse_pause(value: object) -> object:
    """Milliseconds: from "500ms" as in the CLI, or a number of milliseconds (a text such as "500" is fine)."""
    if value is None:
        return None
    number = value
    if isinstance(value, str):
        try:
            number = parse_us(f"{value} ms" if value.strip().isdecimal() else value, "max_pause") / 1000
        except InvalidInput:
            number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= PAUSE_MAX_MS:
        remedy = 'Give more than 0 and at most an hour, such as "500ms", "2 seconds" or 500 (milliseconds).'
        raise InvalidInput("max_pause", value, "is not a duration of up to an hour", remedy)
    return float(number)


def parse_budget(value: object) -> object:
    """Whole milliseconds: from "100ms" as in the CLI, or a number of milliseconds (a text such as "100" is fine)."""
    if value is None:
        return None
    number = value
    if isinstance(value, str):
        try:
            number = parse_us(f"{value} ms" if value.strip().isdecimal() else value, "budget") / 1000
        except InvalidInput:
            number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 1 <= number <= PAUSE_MAX_MS:
        remedy = 'Give 1 ms to an hour, such as "100ms", "2 seconds" or 100 (milliseconds).'
        raise InvalidInput("budget", value, "is not a duration of 1 ms to an hour", remedy)
    return round(number)


Share = Annotated[float | None, BeforeValidator(parse_amount, json_schema_input_type=str | float | None)]
Pause = Annotated[float | None, BeforeValidator(parse_pause, json_schema_input_type=str | float | None)]
Budget = Annotated[int | None, BeforeValidator(parse_budget, json_schema_input_type=str | float | None)]
Reason = Annotated[str, Field(max_length=500, description="Why; stored with the request and in the audit log.")]
Worker = Annotated[int, Field(ge=0, le=1_000_000, description="A worker's number.")]
Groups = Annotated[list[Annotated[int, Field(ge=0, le=10_000_000)]], Field(min_length=1, max_length=GROUPS_MAX)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, body: Any) -> Any:
        for name, value in body.items() if isinstance(body, dict) else ():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int | float) and abs(number) > NUMBER_MAX:
                    raise InvalidInput(name, number, "is out of range", "Give a number of at most 19 digits.")
        return body


class Mutation(Body):
    """Fields of every mutation."""

    reason: Reason = ""
    expected_epoch: int | None = Field(
        None, ge=1, description="Refused with 409 if the query has another epoch by now."
    )


class Manner(Mutation):
    """How groups are to be moved."""

    strategy: AskedStrategy = Field("auto", description="`auto` chooses by the papers' cost models and says why.")
    max_pause: Pause = Field(
        None, description="How much longer a batch may take; the move is spread over more batches.", examples=["500ms"]
    )
    order: Order = Field("hot-first", description="Which groups of a paced move go first.")


class ProposalBody(Manner):
    policy: PolicyName = Field(
        "level",
        description="`level`: lower the largest load; `pairwise`: as in the papers; `drain`, `fill`: one worker.",
    )
    worker: Worker | None = Field(None, description="For drain and fill.")
    max_moved_bytes: int | None = Field(
        None, ge=1, le=NUMBER_MAX, description="Budget: at most this much state moves; null for the balancer's own."
    )
    excluded: list[Worker] = Field(
        [], max_length=GROUPS_MAX, description="Workers that this proposal leaves out, beside the excluded ones."
    )

    model_config = ConfigDict(
        json_schema_extra={"examples": [{}, {"policy": "drain", "worker": 2}, {"excluded": [3], "max_pause": "500ms"}]}
    )

    @model_validator(mode="after")
    def _check_worker(self) -> Self:
        policy_named(self.policy, self.worker)
        return self


class SessionBody(Body):
    ticket: str = Field(max_length=200, description="As printed; good once, for ten minutes.")

    model_config = ConfigDict(json_schema_extra={"examples": [{"ticket": "K7bq..."}]})


class RebalanceBody(Manner):
    """`{}`: carry out what the policy proposes. With `proposal`: carry out that one. With `from`, `to` and `groups` or
    `amount`: carry out this move."""

    proposal: str | None = Field(None, max_length=64, description="Id of the proposal to carry out.")
    sender: Worker | None = Field(None, alias="from")
    receiver: Worker | None = Field(None, alias="to")
    groups: Groups | None = Field(None, description="Numbers of partition groups that the sender owns.")
    amount: Share = Field(None, description="Share of the sender's load to move.", examples=["25%"])
    measure: ShareMeasure = Field("cpu", description="What `amount` is a share of.")
    policy: Balancer = Field("level", description="For a request that names neither a proposal nor a move.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {},
                {"proposal": "p-5f0c2a9d11e8", "reason": "evening peak"},
                {"from": 0, "to": 3, "groups": [4, 9, 17], "strategy": "ptlb"},
                {"from": 0, "to": 3, "amount": "25%", "strategy": "mslb", "max_pause": "500ms"},
            ]
        }
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        named = {"from": self.sender, "to": self.receiver, "groups": self.groups, "amount": self.amount}
        names = [name for name, value in named.items() if value is not None]
        if self.proposal is not None and names:
            raise InvalidInput(
                names[0],
                named[names[0]],
                "cannot be combined with a proposal",
                "Name a proposal or a move, not both.",
            )
        if not names:
            return self
        for name in ("from", "to"):
            if name not in names:
                raise InvalidInput(name, None, "is missing", "Name sender (from) and receiver (to).")
        if self.groups is not None and self.amount is not None:
            raise InvalidInput(
                "amount", self.amount, "cannot be combined with groups", "Give either groups or an amount."
            )
        if self.groups is None and self.amount is None:
            raise InvalidInput("groups", None, "is missing", "Give the groups to move, or an amount.")
        return self


class OneWorkerBody(Manner):
    """Drain or fill this worker."""

    worker: Worker

    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": 2, "reason": "scale-in"}]})


class CancelBody(Body):
    reason: Reason = ""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "wrong worker"}]})


class AutoBody(Mutation):
    """Settings of the balancer; fields that are left out stay as they are. Ranges: balancing/settings.py."""

    enabled: bool | None = Field(None, description="Whether the balancer acts by itself.")
    measure: str | None = Field(None, description="cpu, bytes or rows")
    policy: str | None = Field(None, description="level or pairwise")
    strategy: str | None = Field(None, description="auto, ptlb or mslb")
    start_ratio: float | None = Field(
        None, description="The balancer acts if the largest load is this many times the mean ..."
    )
    stop_ratio: float | None = Field(None, description="... and continues until it is below this many times the mean.")
    cool_down_s: float | None = Field(None, description="Pause after a rebalance.")
    min_gain: float | None = Field(None, description="Share by which a rebalance must lower the largest load.")
    min_batches: int | None = Field(None, description="Batches to measure after the mapping has changed.")
    min_busy: float | None = Field(
        None, description="Do nothing while the busiest executor uses less of one core than this."
    )
    max_moved_bytes: int | None = Field(None, description="Limit of one rebalance; null for none.")
    max_pause: Pause = Field(
        None, description="How much longer a batch may take; null for the default.", examples=["500ms"]
    )

    plans: bool | None = Field(None, description="Whether the optimiser changes workers' plans by itself.")
    plan_min_gain: float | None = Field(None, description="Share of a worker's CPU that another plan must save ...")
    plan_hold_s: float | None = Field(None, description="... for as long as this without a break ...")
    plan_horizon_s: float | None = Field(None, description="... and within which it must have paid for the change.")
    plan_rest_s: float | None = Field(None, description="Pause of a worker after a change of its plan.")
    plan_strategy: str | None = Field(None, description="auto, ms or hybmig")
    plan_budget: Budget = Field(None, description="What a batch may spend on a change of plans.", examples=["100ms"])
    plan_memory_bytes: int | None = Field(
        None, description="What a worker's states may take, those of both plans together; null for no limit."
    )

    model_config = ConfigDict(json_schema_extra={"examples": [{"enabled": True, "reason": "night shift"}]})

    def changes(self) -> dict[str, Any]:
        """In the balancer's own names."""
        changes = self.model_dump(exclude_unset=True, exclude={"reason", "expected_epoch"})
        return {_AUTO_NAMES.get(name, name): value for name, value in changes.items()}


_AUTO_NAMES = {"enabled": "auto", "max_pause": "max_pause_ms", "plan_budget": "plan_budget_ms"}


class RulesBody(Mutation):
    """What no policy may move; fields that are left out stay as they are."""

    pinned: list[int] | None = Field(None, max_length=GROUPS_MAX, description="Groups that stay where they are.")
    excluded: list[int] | None = Field(None, max_length=GROUPS_MAX, description="Workers that balancing leaves out.")
    plans: list[int] | None = Field(None, max_length=GROUPS_MAX, description="Workers whose plan stays as it is.")

    model_config = ConfigDict(json_schema_extra={"examples": [{"pinned": [7], "excluded": [], "plans": [3]}]})


class ProblemDocument(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    value: Any = None
    remedy: str

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:trimtab:problem:invalid",
                    "title": "Unprocessable Content",
                    "status": 422,
                    "detail": "amount is out of range.",
                    "field": "amount",
                    "value": "250%",
                    "remedy": 'Give more than 0 and at most 100%: "25%" or 0.25.',
                }
            ]
        }
    )
