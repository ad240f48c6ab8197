"""The one list of policies. A name that is not in it is an error wherever it comes from, never another policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from balancing.policies.drain import Drain
from balancing.policies.fill import Fill
from balancing.policies.level import Level
from balancing.policies.pairwise import Pairwise
from balancing.policies.policy import Policy
from trimtab.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class RegisteredPolicy:
    """How a policy is made."""

    make: Callable[[], Policy] | None = None
    make_for: Callable[[int], Policy] | None = None
    """Where it is about one worker; such a policy does not act on its own."""


POLICIES: Final[Mapping[str, RegisteredPolicy]] = {
    "level": RegisteredPolicy(make=Level),
    "pairwise": RegisteredPolicy(make=Pairwise),
    "drain": RegisteredPolicy(make_for=Drain),
    "fill": RegisteredPolicy(make_for=Fill),
}


def policy_named(name: str, worker: int | None = None) -> Policy:
    """The policy of this name. `worker`: for those that are about one."""
    entry = POLICIES.get(name)
    if entry is None:
        raise InvalidInput("policy", name, "is not a policy", f"Use one of {', '.join(POLICIES)}.")
    if entry.make_for is not None:
        if worker is None:
            raise InvalidInput("worker", None, f"is missing for the policy {name}", "Name the worker.")
        return entry.make_for(worker)
    if worker is not None:
        remedy = "Leave it out, or drain or fill it."
        raise InvalidInput("worker", worker, f"cannot be combined with the policy {name}", remedy)
    assert entry.make is not None, f"policy {name} cannot be made"
    return entry.make()
