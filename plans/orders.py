"""Plan orders against a query's streams: what an epoch must not order, checked where epochs are bound."""

from __future__ import annotations

from collections.abc import Sequence

from plans.tree import parse_plan
from trimtab.epochs import Epoch
from trimtab.errors import CorruptState, InvalidInput


def check_orders(epoch: Epoch, streams: Sequence[str]) -> None:
    """Refuse an epoch whose plans are not trees over exactly these streams: bound, it would stop a worker for good."""
    for order in epoch.plans:
        try:
            text = str(parse_plan(order.plan, streams))
        except InvalidInput as error:
            raise CorruptState(f"plan order {order.id} of worker {order.worker}: {error}") from None
        if text != order.plan:
            raise CorruptState(f"plan order {order.id} of worker {order.worker}: {order.plan!r} is not written {text}")
