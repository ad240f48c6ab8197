"""Moves of a `Cluster`'s groups at random: opened, closed, recalled, brought back, as a manager might do it."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.checkers.cluster import Cluster
from tests.checkers.feed import record
from trimtab.moves import Kind, Move, RoleState, Way


def go_on(cluster: Cluster, luck: random.Random) -> tuple[dict[str, Move], dict[int, int]]:
    """Close what may be closed, recall some, bring back what was recalled: moves and new owners of the next epoch."""
    moves = {move.id: move for move in cluster.moves}
    owners: dict[int, int] = {}
    for move in cluster.moves:
        sender, receiver = told(cluster, move, move.sender), told(cluster, move, move.receiver)
        if move.way == Way.RECALLED:
            answers = {RoleState.RECALLED_JOINED: Way.JOINED, RoleState.RECALLED_HELD: Way.HELD}
            if receiver in answers:
                moves[move.id] = replace(move, way=answers[receiver])
        elif move.way.back:
            if sender == RoleState.RESTORED:
                del moves[move.id]
        elif receiver == RoleState.RECEIVED or sender == RoleState.ALL_OLD_PURGED:
            if luck.random() < 0.6:
                del moves[move.id]
                owners |= dict.fromkeys(move.groups, move.receiver)
            elif move.kind == Kind.TRANSFER and luck.random() < 0.4:
                moves[move.id] = replace(move, way=Way.RECALLED)
        elif luck.random() < 0.2:
            if move.kind == Kind.DUPLICATE:
                del moves[move.id]
            else:
                moves[move.id] = replace(move, way=Way.RECALLED)
    return moves, owners


def open_some(cluster: Cluster, luck: random.Random, moves: dict[str, Move], opened: int) -> int:
    moving = {group for move in cluster.moves for group in move.groups}
    free = [group for group in range(cluster.partitions) if group not in moving]
    for group in luck.sample(free, min(len(free), luck.randint(0, 2))):
        sender = cluster.epoch.owners[group]
        receiver = luck.choice([worker for worker in range(len(cluster.plans)) if worker != sender])
        name = f"m{opened}.0"
        moves[name] = cluster.move(name, luck.choice(["transfer", "transfer", "duplicate"]), [group], sender, receiver)
        opened += 1
    return opened


def told(cluster: Cluster, move: Move, worker: int) -> RoleState | None:
    return next((role.state for role in record(cluster, worker).roles if role.is_of(move)), None)
