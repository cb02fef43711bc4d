"""Where a law looks: one value of a drawn history is made wrong, and the law notices it or does not.

The place of the value (round, client, local step, direction) is drawn anew for every case, from all that there are. So
the share that a law notices says how much of a history it looks at, and a law that looks only at the first of several
notices nothing in the later ones. What is wrong once is wrong whenever it is made again, in every run of that history.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.errors import UnsatisfiedAssumption

from decomfl_lab.laws.check import named
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.laws.register import Law
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.records.record import RoundRecord, ScalarArray, unsound
from decomfl_lab.records.seeds import Seeding, draw_seeds

WRONG = {
    "scalar": "a scalar that a client sends",
    "revert": "a number of a client's model after its local steps",
    "replay": "a number of a client's model after it has caught up with a round",
    "record": "a scalar of a round's record, for everybody",
    "again": "a scalar of a round's record in every second run of a history",
    "told": "a scalar of a round's record, as clients read it",
    "seed": "the seeds of a local step, in everybody's plan",
    "cut": "a number of a replica's model where a piece of a history ends",
    "tensors": "a number of a model that is followed tensor by tensor",
    "gap": "the answer to a record that does not follow",
    "refusal": "the answer to a scalar that is no number",
    "pruned": "the oldest record that the server keeps after a round",
    "traffic": "the count of what a client sends in a round",
    "sampled": "who is sampled in a round",
    "element": "an element of a direction",
    "backend": "an element of what a backend makes",
    "aggregate": "a scalar that an aggregation gives",
}
"""What is made wrong, by its name."""


class FaultPlace(NamedTuple):
    """Where a value is wrong; None where the kind of value has no such place."""

    round: int | None = None
    client: int | None = None
    step: int | None = None
    direction: int | None = None

    @classmethod
    def drawn(cls, case: Case, kind: str) -> FaultPlace:
        """A place of the case's history, every reply as likely as every other; of eight rounds if it lists none."""
        random = Random(case.seed)
        listed = [(r, i) for r, at in enumerate(case.rounds) for i in at.clients]
        r, i = random.choice(listed or [(r, i) for r in range(8) for i in range(case.M)])
        k, p = random.randrange(case.K), random.randrange(case.P(r))
        whole = cls(r, i, k, p)
        return whole._replace(**dict.fromkeys(_WITHOUT.get(kind, ("step", "direction"))))


_WITHOUT: dict[str, tuple[str, ...]] = {
    "scalar": (),
    "refusal": ("round",),
    "record": ("client",),
    "told": ("client",),
    "again": ("client",),
    "seed": ("client", "direction"),
    **dict.fromkeys(("cut", "tensors", "gap", "pruned"), ("client", "step", "direction")),
}
"""Which parts of a place a kind of value does not have, where these are not local step and direction."""


@dataclass
class Looked:
    """What a law noticed of one kind of wrong value.

    Attributes:
        law: The law's name.
        kind: Which value was wrong, of ``WRONG``.
        places: Each place that there was, with whether the law noticed.
    """

    law: str
    kind: str
    places: list[tuple[FaultPlace, bool]] = field(default_factory=list)

    @property
    def noticed(self) -> int:
        """How often the law noticed."""
        return sum(seen for _, seen in self.places)

    @property
    def share(self) -> float:
        """Noticed of all."""
        return self.noticed / max(len(self.places), 1)

    def at(self, name: str, *, first: bool) -> str:
        """Noticed of all, at the first (round, client, ...) or at later ones; a dash where there is none."""
        places = [(getattr(place, name), was) for place, was in self.places]
        seen = [was for at, was in places if at is not None and (at == 0) is first]
        return f"{sum(seen)}/{len(seen)}" if seen else "–"


class _Altered(Implementation):
    """The lab's, of which one value is wrong wherever it is made.

    Attributes:
        made: Whether the value was made.
    """

    def __init__(self, kind: str, random: Random) -> None:
        self.kind, self.random, self.made = kind, random, False
        self.place = FaultPlace()
        self.servers = self.calls = 0

    def about(self, case: Case) -> None:
        """Draw the place."""
        self.place = FaultPlace.drawn(case, self.kind)

    def _wrong(self, scalars: ScalarArray, k: int | None, p: int | None) -> ScalarArray:
        if k is None or p is None or k >= scalars.shape[0] or p >= scalars.shape[1]:
            return scalars
        self.made, scalars = True, scalars.copy()
        scalars[k, p] = -scalars[k, p] if scalars.dtype == np.int8 else 1.5 * scalars[k, p] + 0.5
        return scalars

    def _unsound_at(self, scalars: ScalarArray, k: int | None, p: int | None) -> bool:
        """Whether that one scalar is no number or sign, and all others are."""
        wrong = np.zeros(scalars.shape, bool)
        if k is not None and p is not None and k < scalars.shape[0] and p < scalars.shape[1]:
            wrong[k, p] = True
        alone = bool(wrong.any() and unsound(scalars[wrong]).size and not unsound(scalars[~wrong]).size)
        self.made |= alone
        return alone

    def _nudged(self, replica: Any) -> None:
        """Add 1 to a number of x; a pool's x is made anew of its sums, which stay."""
        snapshot = replica.snapshot()
        if "sums" in snapshot.state:
            return
        self.made, x = True, snapshot.x.clone()
        j = self.random.randrange(x.numel())
        x[j] += 1
        replica.restore(replace(snapshot, x=x))

    def _client(self, client: Any) -> Any:
        place, handle, catch_up = self.place, client.handle, client.replica.catch_up
        if client.id != place.client:
            return client

        def handles(plan: Plan) -> Reply:
            reply: Reply = handle(plan)
            if plan.round == place.round:
                if self.kind == "scalar":
                    reply = replace(reply, scalars=self._wrong(reply.scalars, place.step, place.direction))
                else:
                    self._nudged(client.replica)
            return reply

        def catches_up(records: Sequence[RoundRecord]) -> Any:
            before = client.replica.round
            applied = catch_up(records)
            if place.round is not None and before <= place.round < client.replica.round:
                self._nudged(client.replica)
            return applied

        if self.kind in ("scalar", "revert"):
            client.handle = handles
        if self.kind == "replay":
            client.replica.catch_up = catches_up
        return client

    def client(self, *at: Any, **named: Any) -> Any:
        """See ``Implementation``."""
        return self._client(super().client(*at, **named))

    def replica(self, case: Case, *, per_tensor: bool = False) -> Any:
        """See ``Implementation``."""
        replica: Any = super().replica(case, per_tensor=per_tensor)
        catch_up, r = replica.catch_up, -1 if self.place.round is None else self.place.round

        def catches_up(records: Sequence[RoundRecord]) -> Any:
            records, before = list(records), replica.round
            if self.kind == "gap" and records and before < records[0].round == r:
                self.made, replica.round = True, r
            applied = catch_up(records)
            if self.kind == "cut" and before < replica.round == r + 1:
                self._nudged(replica)
            if self.kind == "tensors" and per_tensor and before <= r < replica.round:
                self._nudged(replica)
            return applied

        replica.catch_up = catches_up
        return replica

    def lean_client(self, *at: Any) -> Any:
        """See ``Implementation``."""
        return self._client(super().lean_client(*at))

    def sync_client(self, *at: Any) -> Any:
        """See ``Implementation``."""
        return self._client(super().sync_client(*at))

    def server(self, *at: Any, **named: Any) -> Any:
        """See ``Implementation``."""
        server: Any = super().server(*at, **named)
        aggregate, plan_round = server.aggregate, server.plan_round
        self.servers += 1
        number, second = self.servers, self.servers % 2 == 0

        def aggregates(replies: Any) -> RoundRecord:
            arrived = list(replies)
            _, i, *at = self.place
            if (self.kind == "record" or (self.kind == "again" and second)) and server.round == self.place.round:
                arrived = [replace(own, scalars=self._wrong(own.scalars, *at)) for own in arrived]
            spoiled = (own for own in arrived if own.client == i and self._unsound_at(own.scalars, *at))
            if self.kind == "refusal" and any(spoiled):
                arrived = [replace(own, scalars=np.ones_like(own.scalars)) for own in arrived]
            record: RoundRecord = aggregate(arrived)
            if self.kind == "pruned" and record.round == self.place.round:
                self.made = True
                server.history.prune(record.round + 1)
            return record

        def plans(*asked: Any) -> Any:
            plans = plan_round(*asked)
            k = self.place.step
            sent = server.seeding in (Seeding.PER_STEP, Seeding.PER_DIRECTION)
            if self.kind == "seed" and sent and server.round == self.place.round and k is not None and k < server.K:
                self.made = True
                for i, plan in plans.items():
                    others = draw_seeds(server.seeding, server.run_seed ^ number, plan.round, plan.K, plan.P)
                    server._planned[i] = replace(plan, seeds=(*plan.seeds[:k], others[k], *plan.seeds[k + 1 :]))
            return dict(server._planned) if self.kind == "seed" else plans

        server.aggregate, server.plan_round = aggregates, plans
        return server

    def sample(self, seed: int, r: int, M: int, m: int) -> Any:
        """See ``Implementation``."""
        found = super().sample(seed, r, M, m)
        if self.kind != "sampled" or m == 1 or self.random.random() < 0.9:  # in some rounds
            return found
        self.made = True
        return (*found[:-1], found[0])

    def ledger(self, case: Case) -> Any:
        """See ``Implementation``."""
        ledger: Any = super().ledger(case)
        count = ledger.reply

        def counts(reply: Reply) -> bytes:
            message: bytes = count(reply)
            if self.kind == "traffic" and (reply.round, reply.client) == self.place[:2]:
                self.made = True
                ledger.up[reply.client].scalars += 1
            return message

        ledger.reply = counts
        return ledger

    def decode(self, message: bytes, run_seed: int | None = None) -> Any:
        """See ``Implementation``."""
        found: Any = super().decode(message, run_seed)
        if self.kind == "told" and isinstance(found, Plan):
            r, _, k, p = self.place
            records = [
                replace(own, scalars=self._wrong(own.scalars, k, p)) if own.round == r else own for own in found.records
            ]
            found = replace(found, records=tuple(records))
        return found

    def direction(self, *at: Any) -> Any:
        """See ``Implementation``."""
        z = super().direction(*at).copy()
        return self._other(z) if self.kind == "element" else z

    def aggregate(self, *at: Any) -> Any:
        """See ``Implementation``."""
        found = super().aggregate(*at).copy()
        self.calls += 1
        if self.kind != "aggregate" and (self.kind != "again" or self.calls % 2):
            return found
        self.made, j = True, self.random.randrange(found.size)
        found.flat[j] = -found.flat[j] if found.dtype == np.int8 else 3 * found.flat[j] + 1
        return found

    def backends(self) -> Any:
        """See ``Implementation``."""
        right = super().backends()
        return right if self.kind != "backend" else {name: _AlteredBackend(self, own) for name, own in right.items()}

    def _other(self, vector: Any) -> Any:
        """The vector with one element of the other sign."""
        self.made, j = True, self.random.randrange(vector.size)
        vector.flat[j] = -vector.flat[j] - (vector.flat[j] == 0)
        return vector


class _AlteredBackend:
    """A backend of whose results one element is wrong."""

    def __init__(self, of: _Altered, right: Any) -> None:
        self.of, self.right = of, right

    def directions(self, *at: Any) -> Any:
        return self.of._other(self.right.directions(*at).copy())

    def tile_square_sums(self, *at: Any) -> Any:
        return self.of._other(self.right.tile_square_sums(*at).copy())

    def run(self, code: Any, memory: Any, *at: Any, **named: Any) -> int:
        broken = int(self.right.run(code, memory, *at, **named))
        if named.get("store", True) and memory[0].size:
            self.of._other(memory[0])
        return broken


def looked(law: Law, kind: str, *, cases: int = 100, seed: int = 0) -> Looked:
    """Try the law on up to ``cases`` drawn cases, in each of which one value of this kind is wrong."""
    found = Looked(law.name, kind)

    @hypothesis_seed(seed)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(law.inputs)
    def run(drawn: tuple[object, ...]) -> None:
        altered = _Altered(kind, Random(seed))
        for part in drawn:
            if isinstance(part, Case):
                altered.about(part)
        noticed = False
        try:
            law.check(altered, *drawn)
        except (UnsatisfiedAssumption, NotImplementedError):
            reject()
        except Exception:  # whatever a law makes of it, it does not hold
            noticed = True
        if altered.made:
            found.places.append((altered.place, noticed))

    run()
    return found


def table(
    laws: Sequence[Law], *, cases: int = 100, seed: int = 0, on_law: Callable[[str], object] = str
) -> list[Looked]:
    """What each of the laws is about: the kinds of values of which it notices at least nine of ten, or else the most.

    Kinds of which it notices nothing in a few cases are not tried further.
    """
    rows = []
    for law in laws:
        on_law(law.name)
        kinds = [kind for kind in WRONG if looked(law, kind, cases=min(cases, 15), seed=seed).noticed]
        found = [looked(law, kind, cases=cases, seed=seed) for kind in kinds]
        most = max((own.share for own in found), default=0.0)
        rows += [own for own in found if own.share >= min(most, 0.9)]
    return rows


if __name__ == "__main__":  # python -m tests.laws.places [LAW ...]: ten minutes for all
    for row in table(named(sys.argv[1:]), on_law=print):
        shares = (
            f"{name} 0 {row.at(name, first=True)}, later {row.at(name, first=False)}" for name in FaultPlace._fields
        )
        print(f"{WRONG[row.kind]}: noticed {row.noticed}/{len(row.places)} ({'; '.join(shares)})")
