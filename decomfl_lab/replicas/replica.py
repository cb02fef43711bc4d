"""A replica: parameters and optimizer state that follow the records, bit for bit."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from decomfl_lab.devices import on_host
from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.noise import Backend, Distribution, Program
from decomfl_lab.noise.program import MOST_NAMES
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import StepSeed, keyed
from decomfl_lab.replicas.rebuild import backend_for, rebuild_
from decomfl_lab.replicas.rules import Group, Sgd, Step, UpdateRule, programs_of

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Snapshot:
    """The contents of a replica: its round, x (d,) and the state vectors. Nobody writes to these vectors again."""

    round: int
    x: Tensor
    state: dict[str, Tensor]


def _steps(record: RoundRecord) -> list[Step]:
    """The K local steps of a record."""
    return [
        Step(seed, scalars, record.eta, record.distribution, last=k == record.K)
        for k, (seed, scalars) in enumerate(zip(record.seeds, record.scalars, strict=True), 1)
    ]


class Replica:
    """x and optimizer state after the rounds 0..round-1.

    Snapshots, clones and replicas of equal bits share their vectors until one of them steps on, so a federation of
    which most clients hold the same model needs it once.
    """

    # whether it takes a way of its own, up to rounding, and is no replay of the records to the bit
    drifts: ClassVar[bool] = False
    # the local steps of round ``round`` that x has taken and that nothing has taken back yet, where it drifts
    taken: tuple[Step, ...] = ()

    def __init__(
        self,
        x: Tensor,
        rule: UpdateRule,
        *,
        sizes: Sequence[int] | None = None,
        backend: str | Backend | None = None,
        workers: int | None = None,
        private_key: int | None = None,
    ) -> None:
        """Copy ``x``.

        Args:
            x: x_0, shape (d,), of a dtype that the rule admits.
            rule: The update rule.
            sizes: The lengths of the pieces to which the rule is applied one by one (default: the whole).
            backend: See ``noise.run``; None chooses by device.
            workers: The number of CPU threads of a rebuild; None for torch's number of threads.
            private_key: The 64-bit key that the holders of replicas share and the server does not know.
        """
        require(x.ndim == 1 and x.numel() > 0, "x", "be a non-empty vector", tuple(x.shape))
        rule.admit(x)
        # the parameters, a flat tensor of shape (d,); nobody may write to it before calling ``own``
        self.x = x.detach().clone().contiguous()
        self.device = self.x.device  # the device that the vectors are on
        self.rule = rule  # the update rule
        # {slot: tensor of shape (d,)}; nobody may write to it before calling ``own``
        self.state = {slot: torch.full_like(self.x, rule.start(slot)) for slot in rule.slots}
        self._shared = False  # whether others may hold these vectors too; they are copied before they are written
        self.round = 0  # the number of records applied, so x is x_round
        self.sizes = tuple(sizes) if sizes is not None else (self.d,)
        require(sum(self.sizes) == self.d, "sizes", f"add up to d={self.d}", self.sizes)
        self.backend = backend_for(x) if backend is None else backend
        self.workers = workers
        if private_key is not None:
            require_int("private_key", private_key, 0, 2**64 - 1)
        self.private_key = private_key  # the key that clients share, or None: see ``stream_seed``

    def stream_seed(self, seed: StepSeed) -> StepSeed:
        """The seed that z is really made of: ``seed`` itself, or its keyed hash under the private key.

        Without the key the seeds in the records say nothing of the directions, so who only averages and records
        can form neither z nor the model.

        Source: [DeComFL, appendix, private seed shift]; a keyed BLAKE2b instead of a shift, which whoever
        learns one direction could undo.
        """
        return keyed(seed, self.private_key)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.x.numel()

    def _program(self) -> Program:
        return Program(["x", *self.rule.slots])

    def own(self) -> None:
        """Make sure that nobody else has these vectors: they may be written to."""
        if self._shared:
            self.x = self.x.clone()
            self.state = {slot: vector.clone() for slot, vector in self.state.items()}
            self._shared = False

    def _run(self, program: Program | Sequence[Program]) -> None:
        self.own()
        self._run_on(program, self._vectors())

    def _run_on(self, program: Program | Sequence[Program], vectors: Mapping[str, Tensor]) -> None:
        """Run a program, or one for each piece, on vectors {name: (d,)}, piece by piece."""
        cut = {name: vector.split(self.sizes) for name, vector in vectors.items()}
        pieces = [{name: parts[n] for name, parts in cut.items()} for n in range(len(self.sizes))]
        rebuild_(program, pieces, backend=self.backend, workers=self.workers)

    def _real(self, step: Step) -> Step:
        """The step along the directions that are really made: see ``stream_seed``."""
        return replace(step, seed=self.stream_seed(step.seed))

    def step_(self, step: Step) -> None:
        """Apply one local step (not a whole round: ``round`` stays)."""
        self._run(self._step_program(step))

    def _step_program(self, step: Step) -> Program:
        program = self._program()
        self.rule.emit(program, self._real(step))
        return program

    def step_back_(self, step: Step) -> None:
        """Undo the local step applied last, by arithmetic; InputError for a rule that cannot."""
        program = self._program()
        self.rule.emit_reverse(program, self._real(step))
        self._run(program)

    def apply(self, record: RoundRecord) -> None:
        """Apply the record of round ``self.round``; InputError if it is of another round."""
        self._apply_all([record])

    def _apply_all(self, records: Sequence[RoundRecord]) -> None:
        """x_{r+h} from x_r: the K steps of each of h consecutive records, in one pass over the model.

            x ← rule(x, g_r^k, z_r^k),    k = 1..K

        Source: [DeComFL, eq. (reconstruct)].
        """
        for n, record in enumerate(records):
            if record.round != self.round + n:
                raise InputError(f"a replica at round {self.round + n} cannot apply the record of round {record.round}")
        self._run(self._programs(records))
        self.round += len(records)

    def _programs(self, records: Sequence[RoundRecord]) -> Program | Sequence[Program]:
        """The steps of the records, in one program for all pieces of x, or in one for each."""
        program = self._program()
        for record in records:
            self._emit(program, record)
        return program

    def _emit(self, program: Program, record: RoundRecord) -> None:
        for step in _steps(record):
            self.rule.emit(program, self._real(step))

    def catch_up(self, records: Iterable[RoundRecord]) -> int:
        """Apply all records of rounds ≥ ``round`` in order; returns how many. Older ones are known already."""
        pending = [record for record in records if record.round >= self.round]
        if pending:
            self._apply_all(pending)
        return len(pending)

    @contextmanager
    def reverting(self, taken: Sequence[Step], K: int) -> Iterator[None]:
        """A context in which the replica takes local steps; whatever happens there, it is reverted at the end.

        On a grid steps are taken back in reverse order, which is exact and needs no second model; for every other rule
        x and the optimizer's state are kept, and put back.

        Args:
            taken: The local steps that the replica has taken, filled while the context is open.
            K: The number of local steps of the round, of which K − 1 are taken: the last would only be reverted.
        """
        before = self.snapshot() if K > 1 and not self.rule.reversible else None  # for K = 1 nothing moves
        try:
            yield
        finally:
            if before is not None:
                self.restore(before)
            else:
                for step in reversed(taken):
                    self.step_back_(step)

    def diverge(self, taken: Iterable[Step]) -> None:  # noqa: ARG002
        """Note the local steps that x has taken since it was x_round; InputError unless it ``drifts``."""
        raise InputError(f"local steps must be reverted for {self.rule}, got a replica that keeps them")

    @property
    def sums(self) -> PoolSums | None:
        """What stands for all records so far, where x is made of the sums of a pool; None elsewhere."""
        return None

    def take(self, sums: PoolSums, seed: int, distribution: Distribution) -> None:  # noqa: ARG002
        """Be at the round of these sums, of the pool with this seed and distribution of its directions.

        InputError if x is not made of sums, or of those of another pool or grid, or if they are of an earlier round
        than this replica's; it stays as it was.
        """
        raise InputError(f"sums of a pool must come to a replica of a PooledSgd rule, got one of {self.rule}")

    def snapshot(self) -> Snapshot:
        """What ``restore`` brings back bit for bit; it costs a copy when the replica steps on, and not before."""
        self._shared = True
        return Snapshot(self.round, self.x, dict(self.state))

    def restore(self, snapshot: Snapshot) -> None:
        """Be what the snapshot was: parameters, optimizer state and round (revert, or a pull)."""
        form = tuple(snapshot.x.shape), snapshot.x.dtype
        alike = form == ((self.d,), self.x.dtype)
        require(alike, "snapshot", f"be of d={self.d} elements of {self.x.dtype}", form)
        names = set(snapshot.state)
        require(names == set(self.state), "state of the snapshot", f"be {set(self.state)}", names)
        self.x = snapshot.x.to(self.device)
        self.state = {slot: snapshot.state[slot].to(self.device) for slot in self.state}
        self.round = snapshot.round
        self._shared = True

    def share(self, other: "Replica") -> bool:
        """Hold the other's vectors instead of equal ones of this replica's own; False if a single bit differs."""
        mine, its = self._vectors(), other._vectors()
        if self.round != other.round or not all(same_bits(mine[name], its[name]) for name in mine.keys() & its.keys()):
            return False
        self.restore(other.snapshot())
        return True

    def _vectors(self) -> dict[str, Tensor]:
        """The vectors that tell whether two replicas are the same."""
        return {"x": self.x, **self.state}

    def forget(self) -> None:
        """Give the vectors away and keep the round alone, until the next ``restore``."""
        self.x = self.x.to("meta")  # a shape and a type without memory
        self.state = dict.fromkeys(self.state, self.x)

    @property
    def forgotten(self) -> bool:
        """Whether there are no vectors."""
        return self.x.is_meta

    def clone(self) -> "Replica":
        """An independent replica with the same bits."""
        other = Replica.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.state = dict(self.state)
        self._shared = other._shared = True
        return other

    def digest(self) -> str:
        """BLAKE2b-128 over the bytes of x and of each slot in the rule's order, as hex."""
        h = hashlib.blake2b(digest_size=16)
        for vector in (self.x, *(self.state[slot] for slot in self.rule.slots)):
            h.update(vector.cpu().view(torch.uint8).numpy().data)
        return h.hexdigest()


def step_together_(replicas: Sequence[Replica], steps: Sequence[Step]) -> bool:
    """``replica.step_(step)`` for each, with the same bits, directions that several want made once for all.

    False, and nothing is done, where there is nothing to share, or a GPU has no registers for so many replicas at once.
    """
    first = replicas[0]
    kinds = {(type(r), r.sizes, r.backend, r.workers, r.x.dtype, r.x.device) for r in replicas}
    too_many = first.backend == "triton" and len(replicas) * (1 + len(first.state)) > MOST_NAMES
    if len(kinds) > 1 or type(first) is not Replica or too_many:  # a subclass may step in a way of its own
        return False
    shared = Program.together([replica._step_program(step) for replica, step in zip(replicas, steps, strict=True)])
    if shared is None:
        return False
    vectors: dict[str, Tensor] = {}
    for n, replica in enumerate(replicas):
        replica.own()
        vectors |= {f"{n} {name}": vector for name, vector in replica._vectors().items()}
    first._run_on(shared, vectors)
    return True


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Whether two vectors are the same, −0 and 0 told apart."""
    return x is y or torch.equal(x.view(_WORDS[x.element_size()]), y.view(_WORDS[y.element_size()]))


class GroupedReplica(Replica):
    """A replica whose pieces, parameters of an optimizer, are in groups (``rules.Group``); records alone move it."""

    def __init__(self, x: Tensor, groups: Sequence[Group], **options: Any) -> None:
        """See ``Replica``; the groups have the pieces in their order."""
        super().__init__(x, groups[0].rule, **options)
        self.groups = groups

    def _programs(self, records: Sequence[RoundRecord]) -> list[Program]:
        return programs_of(self.groups, [self._real(step) for record in records for step in _steps(record)])


class SyncReplica(Replica):
    """A replica that is not reverted after local steps but corrected when their round's record comes (plain SGD only).

        x_{r+1} = x_{i,r}^K + η Σ_k (1/P) Σ_p (g_{i,r,p}^k − g_{r,p}^k) z_{r,p}^k

    It needs no snapshot, only its own scalars. The identity is one of real arithmetic: every correction leaves some
    roundings behind, and this replica *drifts* away from the others, which agree to the bit.

    Source: [DeComFL, eq. (sync)]; the step after the last measurement is never taken, so the last step of a record
    is applied as it is.
    """

    rule: Sgd
    drifts = True

    def __init__(self, x: Tensor, rule: UpdateRule, **options: Any) -> None:
        """See ``Replica``; InputError for a rule whose steps cannot be corrected."""
        require(rule.correctable, "rule", "be plain SGD where replicas are synchronised without revert", rule)
        super().__init__(x, rule, **options)

    @contextmanager
    def reverting(self, taken: Sequence[Step], K: int) -> Iterator[None]:  # noqa: ARG002
        """See ``Replica.reverting``: the steps stay, until the record of the round comes."""
        try:
            yield
        finally:
            self.diverge(taken)

    def diverge(self, taken: Iterable[Step]) -> None:
        self.taken = tuple(replace(step, scalars=on_host(step.scalars)) for step in taken)

    def _correct(self, program: Program, taken: Step, step: Step | None) -> None:
        """Exchange a step that x has taken for that of the record; None takes it back."""
        self.rule.emit_correction(program, self._real(taken), step, wide=self.x.dtype == torch.float64)

    def _emit(self, program: Program, record: RoundRecord) -> None:
        steps = _steps(record)
        for taken, step in zip(self.taken, steps, strict=False):
            self._correct(program, taken, step)
        for step in steps[len(self.taken) :]:
            self.rule.emit(program, self._real(step))
        self.taken = ()

    def catch_up(self, records: Iterable[RoundRecord]) -> int:
        """See ``Replica.catch_up``; local steps of a round whose record has not come are taken back."""
        applied = super().catch_up(records)
        if self.taken:
            program = self._program()
            for taken in self.taken:
                self._correct(program, taken, None)
            self._run(program)
            self.taken = ()
        return applied

    def restore(self, snapshot: Snapshot) -> None:
        """See ``Replica.restore``: what x had taken is gone with it."""
        super().restore(snapshot)
        self.taken = ()
