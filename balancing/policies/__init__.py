"""Policies, one per file: each suggests moves from a snapshot of the load. All of them are in `POLICIES`."""

from balancing.policies.drain import Drain
from balancing.policies.fill import Fill
from balancing.policies.level import Level
from balancing.policies.pairwise import Pairwise
from balancing.policies.policy import Finding, Policy, SuggestedMove, Suggestion
from balancing.policies.registry import POLICIES, RegisteredPolicy, policy_named

__all__ = [
    "POLICIES",
    "Drain",
    "Fill",
    "Finding",
    "Level",
    "Pairwise",
    "Policy",
    "RegisteredPolicy",
    "SuggestedMove",
    "Suggestion",
    "policy_named",
]
