"""What is mutated, what is not and why, and which tests are run against a mutant. Tables only.

Paths may name what does not exist (yet): they are passed over, and `--list` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Plan:
    targets: tuple[str, ...]
    """Patterns of modules whose guards are mutated."""
    tests: tuple[str, ...]
    """Patterns of files with cheap tests."""
    modules_left_out: Mapping[str, str] = field(default_factory=dict)
    """Pattern -> why nothing there is a guard. Likewise for functions (Class.method), tables and calls."""
    refusals_only: Mapping[str, str] = field(default_factory=dict)
    """Pattern of modules -> why only what refuses something is a guard there."""
    everything_in: Mapping[str, str] = field(default_factory=dict)
    """Pattern of modules -> why every change there takes away a guard."""
    names_left_out: Mapping[str, str] = field(default_factory=dict)
    calls_left_out: Mapping[str, str] = field(default_factory=dict)
    traits_left_out: Mapping[str, str] = field(default_factory=dict)
    """Name of a keyword in a table -> why its value guards nothing."""
    tests_left_out: Mapping[str, str] = field(default_factory=dict)
    """Pattern of test ids -> why they are not run."""
    tests_timed: Mapping[str, str] = field(default_factory=dict)
    """Pattern of test ids -> why a failure may come from a busy machine: it counts if it comes twice."""
    first: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pattern of modules -> files of tests that are likely to kill a mutant there, the likeliest first."""
    preloaded: tuple[str, ...] = ()
    """Third-party modules that are imported once, before anything is forked. Never one of ours."""


_WEIGHS: Final = "weighs and suggests: a wrong weight moves the wrong groups, and loses no row"

PLAN: Final = Plan(
    targets=(
        "balancing/**/*.py",
        "worker/answers.py",
        "worker/continuity.py",
        "worker/protocol.py",
        "worker/roles.py",
        "worker/transfers.py",
        "worker/witness.py",
        "split_union/routing.py",
        "trimtab/epochs.py",
        "trimtab/moves.py",
        "trimtab/evidence.py",
        "trimtab/reports.py",
        "trimtab/store.py",
        "manager/lease.py",
        "manager/journal.py",
    ),
    modules_left_out={
        "*/__init__.py": "re-exports",
        "balancing/protocols/diagram.py": "draws diagrams for people",
        "balancing/explain.py": "words for people",
    },
    refusals_only={
        "balancing/load.py": _WEIGHS,
        "balancing/smoothing.py": _WEIGHS,
        "balancing/forecast.py": _WEIGHS,
        "balancing/strategy.py": _WEIGHS,
        "balancing/selection.py": _WEIGHS,
        "balancing/pacing.py": _WEIGHS,
        "balancing/policies/*.py": _WEIGHS,
        "balancing/proposal.py": _WEIGHS,
        "balancing/replans/advice.py": _WEIGHS,
        "balancing/replans/statistics.py": _WEIGHS,
        "balancing/replans/trigger.py": "when to change a plan, not how: too early costs work, and loses no row",
        "balancing/triggers.py": "when to act, not what: acting too early costs work, and loses no row",
    },
    everything_in={"split_union/routing.py": "each condition decides who gets a row"},
    names_left_out={
        "*render*": "text for people",
        "*describe*": "text for people",
        "*.story": "text for people",
        "_because": "wording",
        "*.__str__": "text for people",
        "*.__repr__": "text for people",
        "redacted": "wording of a message",
        "_REASONS": "wording of an error",
        "route_naively": "the naive twin that tests compare with",
    },
    calls_left_out={
        "Tell": "a message for people",
        "self._wrong": "wording of a problem",
        "log.*": "log lines",
        "logger.*": "log lines",
        "field": "how a dataclass prints and compares",
    },
    traits_left_out={"publishes": "for the diagrams only"},
    tests=(
        "tests/paper/*.py",
        "tests/scenarios/test_*.py",
        "tests/simulation/test_*.py",
        "tests/simulator/test_*.py",
        "tests/unit/test_balancing_*.py",
        "tests/unit/test_audit*.py",
        "tests/unit/test_comparing.py",
        "tests/unit/test_epochs.py",
        "tests/unit/test_manager_*.py",
        "tests/unit/test_plan_*.py",
        "tests/unit/test_protocols*.py",
        "tests/unit/test_replans.py",
        "tests/unit/test_situation.py",
        "tests/unit/test_steering*.py",
        "tests/unit/test_store.py",
        "tests/unit/test_transfers.py",
        "tests/unit/test_worker_*.py",
        "tests/unit/test_kernels.py",
    ),
    tests_left_out={
        "tests/simulation/test_exhaustive.py::test_every_guard_is_needed*": "mutants themselves",
        "tests/simulation/test_exhaustive.py::test_somebody_cancels*": "all searches once more, where others ran them",
        "tests/simulation/test_exhaustive.py::test_every_row*": "the same; test_worker_roles.py has a cheap one",
        "tests/simulator/test_seeds.py::test_a_story_ends_well[[][1-9][0-9]*": "200 seeds; the first nine do",
        "tests/simulator/test_shortening.py::*": "how a failure is told",
        "tests/simulation/test_manager_automatic.py::test_the_service_*": "6 s, and about processes",
        "tests/unit/test_worker_moves.py::test_random_moves?[2-9]?": "4 s each; two seeds do",
        "tests/unit/test_worker_guards.py::test_row_numbers_are_drawn_anew*": "3 s, about row numbers",
    },
    tests_timed={
        "tests/simulation/test_manager_*": "managers beside each other, leases and time-outs on a real Redis",
        "tests/unit/test_manager_store.py*": "leases that end",
        "tests/unit/test_store.py*": "time-outs on a real Redis",
        "tests/simulator/test_redis_twin.py*": "a real Redis",
    },
    first={
        "balancing/protocols/*.py": (
            "tests/unit/test_protocols.py",
            "tests/unit/test_protocols_observe.py",
            "tests/paper/test_protocols.py",
            "tests/scenarios/test_scenarios.py",
            "tests/simulation/test_exhaustive.py",
        ),
        "balancing/compose.py": (
            "tests/unit/test_protocols.py",
            "tests/paper/test_protocols.py",
            "tests/scenarios/test_scenarios.py",
            "tests/simulation/test_exhaustive.py",
        ),
        "balancing/replans/*.py": (
            "tests/unit/test_replans.py",
            "tests/unit/test_plan_trigger.py",
            "tests/scenarios/test_scenarios.py",
            "tests/simulation/test_exhaustive.py",
        ),
        "balancing/steering.py": ("tests/unit/test_steering.py", "tests/scenarios/test_scenarios.py"),
        "balancing/audit.py": ("tests/unit/test_balancing_audit.py", "tests/simulator/test_damages.py"),
        "balancing/comparing.py": (
            "tests/unit/test_comparing.py",
            "tests/unit/test_balancing_audit.py",
            "tests/simulator/test_damages.py",
        ),
        "balancing/stalls.py": ("tests/unit/test_balancing_stalls.py",),
        "balancing/requests.py": ("tests/unit/test_manager_requests.py",),
        "balancing/takeup.py": ("tests/unit/test_manager_requests.py",),
        "balancing/settings.py": ("tests/unit/test_balancing_triggers.py",),
        "balancing/policies/*.py": ("tests/unit/test_balancing_policies.py",),
        "worker/roles.py": ("tests/unit/test_worker_roles.py", "tests/unit/test_worker_guards.py"),
        "worker/witness.py": ("tests/unit/test_worker_witness.py", "tests/unit/test_worker_evidence.py"),
        "worker/answers.py": ("tests/unit/test_worker_moves.py",),
        "worker/continuity.py": ("tests/unit/test_worker_continuity.py",),
        "worker/transfers.py": ("tests/unit/test_transfers.py", "tests/unit/test_worker_guards.py"),
        "worker/protocol.py": (
            "tests/unit/test_worker_continuity.py",
            "tests/unit/test_worker_guards.py",
            "tests/unit/test_worker_moves.py",
        ),
        "split_union/routing.py": ("tests/unit/test_kernels.py", "tests/unit/test_worker_moves.py"),
        "trimtab/epochs.py": ("tests/unit/test_epochs.py", "tests/unit/test_store.py"),
        "trimtab/moves.py": ("tests/unit/test_epochs.py", "tests/unit/test_worker_guards.py"),
        "trimtab/reports.py": ("tests/unit/test_store.py",),
        "trimtab/store.py": ("tests/unit/test_store.py", "tests/simulator/test_redis_twin.py"),
        "manager/*.py": ("tests/unit/test_manager_store.py", "tests/simulator/test_redis_twin.py"),
    },
    preloaded=(
        "fastapi",
        "hypothesis.strategies",
        "numba",
        "numpy.typing",
        "pandas",
        "prometheus_client",
        "psutil",
        "pyarrow.compute",
        "pyarrow.fs",
        "pyarrow.ipc",
        "pyarrow.pandas_compat",
        "pydantic",
        "pytest",
        "redis.asyncio",
        "rich.console",
        "yaml",
    ),
)
