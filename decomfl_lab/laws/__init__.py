"""The laws of seed/revert logic, as properties that any implementation can be put to. Needs hypothesis.

    from decomfl_lab import laws

    class Mine(laws.Implementation):                        # override what is yours
        def client(self, case, i, objective=None):
            return MyClient(i, case, laws.Wavy(case.d, i) if objective is None else objective)

    print(laws.verify(Mine()))                              # or test_laws = laws.pytest_suite(Mine()) in pytest
    print(laws.verify(laws.of_method(MyMethod(c=1.0))))     # a method, ``decomfl_lab.methods.method.Method``

``decomfl verify --target-template`` prints a file with everything that is used of a client, a replica and a server, to
be filled in; ``verify_update`` and ``verify_identity`` put anybody's training step, and who has whose noise, to laws of
their own, and ``laws.exact`` has three ways to measure exactly. ``LAWS`` and ``FAULTS`` are the laws and the wrong
implementations that they catch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decomfl_lab.laws.check import planted, pytest_suite, verify
    from decomfl_lab.laws.contract import (
        AnyClient,
        AnyReplica,
        AnyServer,
        AnyWeighingServer,
        Case,
        Implementation,
        Participation,
        Wavy,
    )
    from decomfl_lab.laws.faults import FAULTS
    from decomfl_lab.laws.identity import IDENTITY_LAWS, identity_suite, verify_identity
    from decomfl_lab.laws.method import of_method
    from decomfl_lab.laws.outcomes import Outcome, Outcomes
    from decomfl_lab.laws.register import LAWS, LawBrokenError
    from decomfl_lab.laws.update import UPDATE_LAWS, update_suite, verify_update
    from decomfl_lab.objectives.objective import Objective, Perturbable
    from decomfl_lab.protocol.messages import Held, Plan, Reply
    from decomfl_lab.protocol.server import Tracking
    from decomfl_lab.records.record import History, RoundRecord
    from decomfl_lab.records.seeds import Seeding
    from decomfl_lab.replicas.replica import Snapshot

__all__ = ["FAULTS", "LAWS", "AnyClient", "AnyReplica", "AnyServer", "AnyWeighingServer", "Case", "Held", "History"]
__all__ += ["Implementation", "LawBrokenError", "Objective", "Outcome", "Outcomes", "Participation", "Perturbable"]
__all__ += ["IDENTITY_LAWS", "UPDATE_LAWS", "identity_suite", "update_suite", "verify_identity", "verify_update"]
__all__ += ["Plan", "Reply", "RoundRecord", "Seeding", "Snapshot", "Tracking", "Wavy"]
__all__ += ["of_method", "planted", "pytest_suite", "verify"]


def __getattr__(name: str) -> Any:
    if name == "exact":
        return importlib.import_module(f"{__name__}.exact")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("check", "contract", "update", "identity"):  # check imports every law, so LAWS is never half full
        found = getattr(importlib.import_module(f"{__name__}.{module}"), name, None)
        if found is not None:
            return found
    raise AssertionError(name)
