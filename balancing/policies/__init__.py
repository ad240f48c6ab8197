"""Policies, one per file: each suggests moves from a snapshot of the load."""

from balancing.policies.drain import Drain
from balancing.policies.fill import Fill
from balancing.policies.level import Level
from balancing.policies.pairwise import Pairwise
from balancing.policies.policy import Finding, Policy, SuggestedMove, Suggestion

__all__ = ["Drain", "Fill", "Finding", "Level", "Pairwise", "Policy", "SuggestedMove", "Suggestion"]
