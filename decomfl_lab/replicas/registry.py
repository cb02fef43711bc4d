"""Which replica follows records by a rule: the one place that knows the classes."""

from typing import Any

from torch import Tensor

from decomfl_lab.replicas.pool_sums import PooledReplica
from decomfl_lab.replicas.replica import Replica, SyncReplica
from decomfl_lab.replicas.rules import UpdateRule


def kind_of(rule: UpdateRule, *, corrected: bool = False) -> type[Replica]:
    """The class of the replicas that follow records by a rule; see ``make_replica``."""
    if corrected:
        return SyncReplica
    return PooledReplica if rule.pool else Replica


def make_replica(x: Tensor, rule: UpdateRule, *, corrected: bool = False, **options: Any) -> Replica:
    """A replica at round 0, of the options of ``Replica``; InputError if the rule admits no such x, or no correction.

    x_0, (d,), is copied; it is without memory (``Tensor.to("meta")``) for sums of a pool alone. Local steps are
    ``corrected`` when their round's record comes, or reverted.
    """
    return kind_of(rule, corrected=corrected)(x, rule, **options)
