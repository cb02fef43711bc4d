"""Laws of a step that measures along noise and updates along it: for anybody's code. Needs torch.

Zeroth-order training is two functions over a module, and a replay that knows seeds and scalars alone rests on both:

    class Target:
        def __init__(self, module): ...
        def perturb(self, seed, s): ...      # x ← x + s·z(seed), in place
        def update(self, seed, g, lr): ...   # x ← x − lr·g·z(seed), with the same z, and nothing else

    print(verify_update(Target))

A measurement is ``perturb(seed, μ); perturb(seed, −2μ); perturb(seed, μ)``. Noise and arithmetic are the target's own:
what it does is compared with what it does itself, never with the lab's. It may also have:

    weights()          {name of a parameter: x as the loss sees it now}, where parameters do not hold it
    log(), replay(log) what it writes down of its updates, and the same updates by a new target of the same x_0
    settings           a class attribute, ({"weight_decay": 0.1}, ...): other arguments of its constructor
    seeds              a class attribute: its seeds are below that, such as 2**32, which is what torch's generator keeps
    ranks              a class attribute: how many processes hold the model, each ``Target(module, rank=k)``

Bits are compared, unless a share of the norm of x is allowed (``tolerance``). What a target prints is not shown.
"""

import io
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from decomfl_lab.laws.outcomes import Outcome, Outcomes, generators, suite

MU = 1e-3
SCALARS = (0.7391284, -1.5273849, 0.0, 2.1, -0.4870921)
"""Scalars g of updates, again and again."""
STEPS, RATE = 20, 0.01
ALIKE = 6.0
"""Standard deviations of the cosine of independent directions, beyond which they are held to be one."""
SHARED = 0.9
"""The cosine of two tensors' noise beyond which it is one; below, noise may have a structure, as that of low rank."""
SEEDS = (*range(64), 2**16, 2**31, 2**32, 2**32 + 3, 2**63 - 1)
FAR = 100_003
"""The seed of the first step of a run; those of others are multiples."""


# Modules --------------------------------------------------------------------------------------------------------------


def _tied(tied: bool = True) -> nn.Module:
    """A head whose weights are those of the embedding."""
    module = nn.Module()
    module.embedding, module.middle = nn.Embedding(24, 16), nn.Linear(16, 16)
    module.head = nn.Linear(16, 24, bias=False)
    if tied:
        module.head.weight = module.embedding.weight
    return module


def _lora() -> nn.Module:
    """A frozen matrix, and A and B of rank 2 beside it."""
    module = nn.Module()
    module.base = nn.Linear(16, 16).requires_grad_(False)
    module.A = nn.Parameter(0.1 * torch.randn(2, 16))
    module.B = nn.Parameter(0.1 * torch.randn(16, 2))
    return module


def _mlp(trained: bool = True) -> nn.Module:
    """Three layers, of which the first may be frozen."""
    first = nn.Linear(16, 16).requires_grad_(trained)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def _views() -> nn.Module:
    """Parameters that are pieces of one flat vector, one of them not contiguous."""
    module, flat = nn.Module(), torch.randn(16 * 16 + 8 * 16)
    module.first = nn.Parameter(flat[: 16 * 16].view(16, 16))
    module.second = nn.Parameter(flat[16 * 16 :].view(8, 16).t())
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 4),
    "mlp": _mlp,
    "tied weights": _tied,
    "frozen layer": lambda: _mlp(trained=False),
    "BatchNorm": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)),
    "views": _views,
    "LoRA": _lora,
    "transformer of two layers": lambda: nn.Sequential(
        nn.Embedding(32, 16),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False),
    ),
}
"""The modules that a target is tried on, the simplest first."""
_16_BITS = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Place:
    """A module of one type of numbers."""

    name: str
    make: Callable[[], nn.Module]
    dtype: torch.dtype
    device: str

    def module(self) -> nn.Module:
        """The module, the same every time, in evaluation mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make()
        # Parameters that are views stay what they are where nothing is converted.
        return (module if self.dtype is torch.float32 else module.to(self.dtype)).to(self.device).eval()

    def __str__(self) -> str:
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"


# What is measured -----------------------------------------------------------------------------------------------------


class _BrokenError(AssertionError):
    """A law is broken: what differs, and where."""

    def __init__(self, differs: str, place: _Place | str, calls: str) -> None:
        super().__init__(f"differs  {differs}\nmodule   {place}\ncalls    {calls}")


Weights = dict[str, Tensor]


def _weights(target: Any, module: nn.Module) -> Weights:
    """A copy of x as the loss sees it."""
    x = dict(module.named_parameters())
    if callable(getattr(target, "weights", None)):
        trainable = {name for name, w in x.items() if w.requires_grad}
        x = target.weights()
        if not isinstance(x, Mapping) or not trainable <= x.keys():
            raise ValueError(f"weights() must return x by the names of parameters, {', '.join(sorted(trainable))}")
    return {name: torch.as_tensor(w).detach().cpu().clone().contiguous() for name, w in x.items()}


def _bits(w: Tensor) -> Tensor:
    """The bytes of each element, uint8 (elements, bytes)."""
    return w.reshape(-1).view(torch.uint8).reshape(w.numel(), -1)


def _others(x: Weights, wanted: Weights) -> tuple[int, int, float]:
    """How many numbers have other bits, of how many, and the norm of the difference over the norm."""
    if x.keys() != wanted.keys():
        raise _BrokenError(f"x has {', '.join(x)}, not {', '.join(wanted)}", "-", "-")
    count = total = 0
    square = norm = 0.0
    for name, w in wanted.items():
        count += int((_bits(x[name]) != _bits(w)).any(1).sum())
        total += w.numel()
        square += float((x[name].double() - w.double()).square().sum())
        norm += float(w.double().square().sum())
    return count, total, math.sqrt(square / norm) if norm else math.inf * square


def _moved(x: Weights, start: Weights) -> Weights:
    return {name: x[name].double() - w.double() for name, w in start.items()}


def _cosine(a: Tensor, b: Tensor) -> float:
    n = min(a.numel(), b.numel())
    a, b = a.reshape(-1)[:n], b.reshape(-1)[:n]
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else 0.0


def _flat(x: Weights) -> Tensor:
    return torch.cat([w.reshape(-1) for w in x.values()])


def _measure(target: Any, seed: int) -> None:
    for s in (MU, -2 * MU, MU):
        target.perturb(seed, s)


_MEASURED = f"perturb(seed, {MU}), perturb(seed, {-2 * MU}), perturb(seed, {MU})"


@dataclass(frozen=True)
class _Kit:
    """A target, and where it is put to a law."""

    make: Callable[..., Any]
    modules: Mapping[str, Callable[[], nn.Module]]
    tolerance: float
    device: str

    has_log = property(lambda self: hasattr(self.make, "log") and hasattr(self.make, "replay"))

    def places(self, *dtypes: torch.dtype, of: Iterable[str] = ()) -> Iterator[_Place]:
        """The modules of these names, or all, of these types."""
        names = [name for name in self.modules if not of or name in of or name not in MODULES]
        for dtype, name in itertools.product(dtypes, names):
            if dtype is torch.float32 or name != "views":  # which a conversion would make ones of their own
                yield _Place(name, self.modules[name], dtype, self.device)

    def begin(self, place: _Place, **options: Any) -> tuple[Any, nn.Module, Weights]:
        """A target of a new module, the module, and its x_0."""
        module = place.module()
        target = self.make(module, **options)
        return target, module, _weights(target, module)

    def direction(self, place: _Place, seed: int, s: float = 1.0) -> Weights:
        """What perturb(seed, s) adds to x_0, over s."""
        target, module, start = self.begin(place)
        target.perturb(seed, s)
        return {name: z / s for name, z in _moved(_weights(target, module), start).items()}

    def restored(self, place: _Place, count: int) -> float:
        """The share of its norm by which x is another after so many measurements; _BrokenError beyond the tolerance."""
        target, module, start = self.begin(place)
        first = 0  # how many there were when x was first seen to be another
        for n in range(1, count + 1):
            _measure(target, n)
            if not first and (n & (n - 1) == 0 or n == count) and _others(_weights(target, module), start)[0]:
                first = n
        after = f"measurements, of the seeds 1 to {first}" if first > 1 else "measurement, of seed 1"
        often = f" after {count} measurements" if count > 1 else ""
        return self._share(_weights(target, module), start, place, often, f"{first} {after}: {_MEASURED}")

    def runs(self, place: _Place, *, measured: bool = False, logged: bool = False, **options: Any) -> float:
        """The difference of a run, measured or not, from its updates, or its log, of a new target; likewise."""
        first = 0  # how many updates there were when the two first differed
        replayed, trained = Weights(), Weights()
        for count in (1, 2, 5, STEPS):
            run, module, _ = self.begin(place, **options)
            for step in _steps(count):
                if measured:
                    _measure(run, step[0])
                run.update(*step)
            replay, other, _ = self.begin(place, **options)
            if logged:
                replay.replay(run.log())
            for step in _steps(0 if logged else count):
                replay.update(*step)
            replayed, trained = _weights(replay, other), _weights(run, module)
            if not first and _others(replayed, trained)[0]:
                first = count
        after = " from those of the run" + "".join(f", {name} {value}" for name, value in options.items())
        what = "measurement(s) with their updates" if measured else "update(s)"
        calls = f"{first} {what}, of the seeds {FAR}, {2 * FAR}, ... by lr {RATE}; and then the replay"
        return self._share(replayed, trained, place, f"{after} of {STEPS} steps", calls)

    def _share(self, x: Weights, wanted: Weights, place: _Place, after: str, calls: str) -> float:
        """The share of its norm by which x is another; _BrokenError, which says after what, beyond the tolerance."""
        others, total, share = _others(x, wanted)
        if not share <= self.tolerance or (others and not self.tolerance):  # a NaN is not within it
            raise _BrokenError(
                f"{others} of {total} numbers differ{after}, by {share:.2g} of the norm of x", place, calls
            )
        return share


def _steps(count: int) -> list[tuple[int, float, float]]:
    """The updates of so many steps: seed, g and lr."""
    return [(FAR * n, SCALARS[n % 5], RATE) for n in range(1, count + 1)]


# Laws -----------------------------------------------------------------------------------------------------------------


_Check = Callable[[_Kit], tuple[int, str]]
"""What a target shows of a law: how many cases, and what was measured; _BrokenError if it breaks it."""


@dataclass(frozen=True)
class UpdateLaw:
    """A law."""

    says: str  # what holds, in a line
    why: str  # why it matters
    check: _Check


class _SkippedError(Exception):
    """A target does not have what a law is about."""


def _exact(shares: Iterable[float]) -> tuple[int, str]:
    """How many cases there were, and the largest difference in them."""
    differences = list(shares)
    worst = max(differences, default=0.0)
    return len(differences), f"within {worst:.2g} of the norm" if worst else "exact"


UPDATE_LAWS: dict[str, UpdateLaw] = {
    "restored-once": UpdateLaw(
        "a measurement leaves every bit of x as it was",
        "x then depends on how often it was measured, and a replay that knows seeds and scalars has another model",
        lambda kit: _exact(kit.restored(place, 1) for place in kit.places(torch.float32)),
    ),
    "restored-a-thousand-times": UpdateLaw(
        "a thousand measurements without an update leave every bit of x as it was",
        "what a measurement leaves behind is a walk of x that no record knows, and it grows with their number",
        lambda kit: _exact(kit.restored(at, 1000) for at in kit.places(torch.float32, of=("linear", "tied weights"))),
    ),
    "restored-in-16-bits": UpdateLaw(
        "a hundred measurements in 16 bits leave every bit of x as it was",
        "bfloat16 keeps 8 bits, so x + μz − 2μz + μz loses most of μz each time: "
        "weights walk off by per cents in a run",
        lambda kit: _exact(kit.restored(place, 100) for place in kit.places(*_16_BITS, of=("linear", "mlp", "LoRA"))),
    ),
    "replay-is-the-run": UpdateLaw(
        "updates alone, by seeds and scalars, make the model of the run again",
        "a client that missed steps, or a run that is replayed, has another model than the one that was trained",
        lambda kit: _exact(kit.runs(place, measured=True) for place in [
            *kit.places(torch.float32), *kit.places(torch.bfloat16, of=("linear", "mlp"))
        ]),
    ),
}  # fmt: skip
"""The laws by name."""


def _law(says: str, why: str) -> Callable[[_Check], _Check]:
    """What must be so, and what it is good for, of a law that is called as its check: that name is public."""

    def register(check: _Check) -> _Check:
        UPDATE_LAWS[check.__name__.strip("_").replace("_", "-")] = UpdateLaw(says, why, check)
        return check

    return register


@_law(
    "a log that was written makes the model of the run again",
    "the log is all that is kept of a run: what it lacks is lost",
)
def _log_replays(kit: _Kit) -> tuple[int, str]:
    if not kit.has_log:
        raise _SkippedError("the target has no log and replay")
    return _exact(kit.runs(place, logged=True) for place in kit.places(torch.float32, of=("linear", "mlp")))


@_law(
    "weight decay, momentum and groups are in the replay as in the step",
    "a step that does not decay and a replay that does, or the reverse, are two models",
)
def _settings_are_in_the_replay(kit: _Kit) -> tuple[int, str]:
    settings: Any = getattr(kit.make, "settings", ())
    if not isinstance(settings, Sequence) or not all(isinstance(each, Mapping) for each in settings):
        raise ValueError(f"settings must be a list of arguments by their names, [{{'decay': 0.1}}], got {settings!r}")
    if not settings:
        raise _SkippedError("the target names no settings")
    shares = []
    for place, options in itertools.product(kit.places(torch.float32, of=("linear", "mlp")), settings):
        ends = []
        plain: Mapping[str, Any] = {}
        for arguments in (plain, options):
            target, module, _ = kit.begin(place, **arguments)
            for step in _steps(STEPS):
                target.update(*step)
            ends.append(_weights(target, module))
        if not _others(ends[1], ends[0])[0]:
            setting = ", ".join(f"{name} {value}" for name, value in options.items())
            raise _BrokenError(f"with {setting} x is the same as without", place, f"{STEPS} updates")
        shares.append(kit.runs(place, logged=kit.has_log, **options))
    return _exact(shares)


@_law(
    "an update moves x along what was perturbed, in the right direction, by lr·g",
    "the scalar g is the slope along one direction: a step is −lr·g along it, and along no other",
)
def _update_is_along_the_perturbation(kit: _Kit) -> tuple[int, str]:
    places = [*kit.places(torch.float32), *kit.places(*_16_BITS, of=("linear", "mlp"))]
    smallest, count = 1.0, 0
    for place, (g, lr) in itertools.product(places, ((1.0, 1.0), (2.0, 0.5), (-3.0, 0.25))):
        z = kit.direction(place, 5)
        target, module, start = kit.begin(place)
        target.update(5, g, lr)
        step = _moved(_weights(target, module), start)
        calls = f"perturb(5, 1) and update(5, {g}, {lr}) of one x"
        flat, wanted = _flat(step), -lr * g * _flat(z)
        cosine = _cosine(flat, wanted)
        if not float(flat.norm()) or not float(wanted.norm()):
            raise _BrokenError(
                f"the update is {float(flat.norm()):.3g} long, z {float(wanted.norm()):.3g}", place, calls
            )
        amount = float(flat @ wanted / wanted.square().sum())
        # Either of the two may be rounded where x, or what is added to it, is largest.
        size = torch.cat([w.double().abs().reshape(-1) for w in start.values()])
        room = 8 * torch.finfo(place.dtype).eps * (size + _flat(z).abs() * max(1.0, lr * abs(g))) + 1e-12
        if not bool(((flat - wanted).abs() <= room).all()):  # a NaN is not within it
            wrong = f"the update is {amount:.3g} times -lr·g·z, with cosine {cosine:.3g} to it"
            names = [name for name in z if _cosine(step[name], -lr * g * z[name]) < 0.99]
            raise _BrokenError(wrong + (f"; not along it are {', '.join(names[:4])}" if names else ""), place, calls)
        before = _weights(target, module)
        target.update(6, 0.0, lr)
        if (share := _others(_weights(target, module), before)[2]) > 8 * torch.finfo(place.dtype).eps:
            still = f"an update of g = 0 moves x by {share:.2g} of its norm, as momentum does"
            raise _BrokenError(still, place, f"update(5, {g}, {lr}), update(6, 0, {lr})")
        smallest, count = min(smallest, cosine), count + 1
    return count, f"cosine at least {smallest:.6f}"


@_law(
    "a seed, 0 too, is one direction: the same each time, and −s its reverse",
    "whoever regenerates the direction from its seed gets another one",
)
def _a_seed_is_a_direction(kit: _Kit) -> tuple[int, str]:
    count = 0
    for place, seed in itertools.product(kit.places(torch.float32, of=("linear", "mlp", "LoRA")), (0, 1, 12345)):
        z, again, back = (kit.direction(place, seed, s) for s in (1.0, 1.0, -1.0))
        if any(not torch.equal(z[name], again[name]) for name in z):
            raise _BrokenError(f"seed {seed} is another direction the second time", place, f"perturb({seed}, 1) twice")
        if (cosine := _cosine(_flat(z), _flat(back))) < 0.999:  # a direction is what was moved, divided by s
            calls = f"perturb({seed}, 1) and perturb({seed}, -1)"
            raise _BrokenError(f"the cosine of z by s = 1 and by s = -1 is {cosine:.3f}", place, calls)
        count += 1
    return count, ""


@_law(
    "other seeds are other directions",
    "two seeds of one direction measure it twice. (torch's generator on the CPU keeps 32 bits: where yours are always "
    "below, say so by a class attribute, seeds = 2**32)",
)
def _seeds_differ(kit: _Kit) -> tuple[int, str]:
    place = next(kit.places(torch.float32, of=("mlp",)))
    directions: dict[int, Tensor] = {}
    seeds = [seed for seed in SEEDS if seed < getattr(kit.make, "seeds", 2**64)]
    for seed in seeds:
        try:
            directions[seed] = _flat(kit.direction(place, seed))
        except (ValueError, OverflowError, RuntimeError):
            if seed < 2**31:
                raise  # that a large seed is refused is right, where the generator keeps fewer bits
    for (one, z), (other, w) in itertools.combinations(directions.items(), 2):
        if abs(cosine := _cosine(z, w)) > ALIKE / math.sqrt(z.numel()):
            calls = f"perturb({one}, 1) and perturb({other}, 1)"
            raise _BrokenError(f"seeds {one} and {other} have directions of cosine {cosine:.3f}", place, calls)
    refused = [seed for seed in seeds if seed not in directions]
    return len(directions), f"refused: {', '.join(map(str, refused))}" if refused else ""


@_law(
    "every tensor has noise of its own",
    "tensors of one shape that move together are one direction of fewer dimensions than it seems",
)
def _tensors_have_their_own_noise(kit: _Kit) -> tuple[int, str]:
    largest, count = 0.0, 0
    for place in kit.places(torch.float32, of=("mlp", "transformer of two layers")):
        pieces: dict[str, Tensor] = {}
        for seed in (3, 4):
            for name, moved in kit.direction(place, seed).items():
                z, whose = moved.reshape(-1), f"{name} of seed {seed}"
                if z.numel() >= 100:
                    pieces |= {whose: z, f"the second half of {whose}": z[z.numel() // 2 :]}
        for (one, z), (other, w) in itertools.combinations(pieces.items(), 2):
            if abs(cosine := _cosine(z, w)) > SHARED:
                calls = "perturb(3, 1) and perturb(4, 1)"
                raise _BrokenError(f"{one} and {other} have noise of cosine {cosine:.3f}", place, calls)
            largest, count = max(largest, abs(cosine)), count + 1
    return count, f"cosine at most {largest:.2f}"


@_law(
    "weights that are tied move once",
    "what is moved under two names moves twice as far as the rest, or by the sum of two directions",
)
def _tied_weights_move_once(kit: _Kit) -> tuple[int, str]:
    tied = _Place("tied weights", _tied, torch.float32, kit.device)
    apart = _Place("the same, not tied", lambda: _tied(tied=False), torch.float32, kit.device)
    name, other = "embedding.weight", "middle.weight"
    shares = []  # of noise, beside that of another tensor, whatever the scale of all
    for place in (tied, apart):
        z = kit.direction(place, 3)
        shares.append(float(z[name].norm() / z[other].norm()) if float(z[other].norm()) else math.nan)
    ratio = shares[0] / shares[1] if shares[1] else math.nan
    if not 0.8 < ratio < 1.25:
        raise _BrokenError(f"{name} moves {ratio:.2f} times as far as where it is not tied", tied, "perturb(3, 1)")
    return 1, f"{ratio:.2f} times the noise of weights that are not tied"


@_law(
    "every trainable number moves, and nothing else",
    "a frozen part that moves, or a view that is moved in a copy, is not what the record says",
)
def _only_trainable_numbers_move(kit: _Kit) -> tuple[int, str]:
    count = 0
    for place in kit.places(torch.float32):
        target, module, start = kit.begin(place)
        trainable = {name for name, w in module.named_parameters() if w.requires_grad}
        before = _others_of(module)
        target.perturb(1, 1.0)
        step = _moved(_weights(target, module), start)
        for name, z in step.items():
            share = float((z != 0).double().mean())
            if name in trainable and share < 0.9:
                raise _BrokenError(f"of {name} {share:.0%} of the numbers move", place, "perturb(1, 1)")
            if name not in trainable and share:
                raise _BrokenError(f"{name}, which is frozen, moves", place, "perturb(1, 1)")
        target.perturb(1, -1.0)
        target.update(1, 1.0, 0.1)
        after = _others_of(module)
        for what, value in before.items():
            if after[what] != value:
                raise _BrokenError(f"{what} of the module was changed", place, "perturb(1, 1), update(1, 1, 0.1)")
        count += 1
    return count, ""


def _others_of(module: nn.Module) -> dict[str, Any]:
    """What an update has no business with."""
    frozen = [_bits(w.detach().cpu()).tolist() for w in module.parameters() if not w.requires_grad]
    buffers = [w.detach().cpu().double().tolist() for w in module.buffers()]
    kinds = [(name, w.dtype, w.requires_grad, w.shape) for name, w in module.named_parameters()]
    return {"a frozen part": frozen, "a buffer": buffers, "a type": kinds, "the mode": module.training}


@_law(
    "the random generators of others are as they were",
    "dropout masks and the order of the data repeat, as every step begins at the seed of its direction",
)
def _randomness_of_others_stays(kit: _Kit) -> tuple[int, str]:
    place = next(kit.places(torch.float32))
    target, _, _ = kit.begin(place)
    acts: dict[str, Callable[[], object]] = {
        "perturb(7, 0.001)": lambda: target.perturb(7, MU),
        "perturb(7, -0.001)": lambda: target.perturb(7, -MU),
        "update(7, 0.5, 0.01)": lambda: target.update(7, 0.5, 0.01),
    }
    for calls, act in acts.items():
        before = generators()
        act()
        for name, state in generators().items():
            if state != before[name]:
                raise _BrokenError(f"the generator of {name} is moved", place, calls)
    return len(acts), ""


@_law(
    "all processes that hold the model have the same one",
    "ranks that draw their own noise train as many models as there are ranks",
)
def _ranks_agree(kit: _Kit) -> tuple[int, str]:
    ranks = getattr(kit.make, "ranks", 1)
    if ranks < 2:
        raise _SkippedError("the target names no ranks")
    place = next(kit.places(torch.float32, of=("mlp",)))
    models = []
    for rank in range(ranks):
        target, module, _ = kit.begin(place, rank=rank)
        for step in _steps(3):
            _measure(target, step[0])
            target.update(*step)
        models.append(_weights(target, module))
    for rank, model in enumerate(models):
        others, total, share = _others(model, models[0])
        if others:
            shown = f"{others} of {total} numbers of rank {rank} are others than of rank 0, by {share:.2g} of the norm"
            raise _BrokenError(shown, place, "three steps on every rank")
    return ranks, "exact"


# To put a target to them ----------------------------------------------------------------------------------------------


def verify_update(
    target: Callable[..., Any],
    *,
    module: Callable[[], nn.Module] | None = None,
    tolerance: float = 0.0,
    device: str = "cpu",
    laws: Iterable[str] = (),
    on_outcome: Callable[[Outcome], object] = str,
) -> Outcomes:
    """Put a step of zeroth-order training to the laws.

    Args:
        target: The class, or another function of a module, whose result has ``perturb`` and ``update``.
        module: Makes a module of your own, which is tried after the kit's.
        tolerance: The difference in x that restoring and replaying may leave, over the norm of x; 0 for none.
        device: Where the modules are, as torch names it.
        laws: Names of the laws to try, by default all.
        on_outcome: Called with each outcome as soon as it is there.

    Returns:
        The outcomes, one a law; print them, or read ``broken``.

    Raises:
        ValueError: If a law is unknown, or the tolerance is negative.
    """
    names = list(laws) or list(UPDATE_LAWS)
    if unknown := [name for name in names if name not in UPDATE_LAWS]:
        raise ValueError(f"laws must be among {', '.join(UPDATE_LAWS)}, got {unknown[0]!r}")
    for name, made in (("target", target), ("module", module or nn.Identity)):
        if not callable(made):
            raise ValueError(f"{name} must be a class or a function, got {made!r}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be a share of the norm in [0, 1), got {tolerance}")
    modules = MODULES if module is None else {**MODULES, "your module": module}
    kit = _Kit(target, modules, tolerance, device)
    outcomes = Outcomes()
    for name in names:
        law, began = UPDATE_LAWS[name], time.perf_counter()
        status, count, why, measured = "holds", 1, "", ""
        try:
            with torch.no_grad(), redirect_stdout(io.StringIO()):  # where some print a line for each module
                count, measured = law.check(kit)
        except _SkippedError as error:
            status, count, why = "skipped", 0, str(error)
        except _BrokenError as error:
            status, why = "broken", f"{error}\nwhy      {law.why}"
        except (Exception, SystemExit) as error:  # whatever somebody else's code raises
            status, why = "crashed", f"raised   {type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        outcomes.append(Outcome(name, law.says, status, count, why, seconds=seconds, measured=measured))  # type: ignore[arg-type]
        on_outcome(outcomes[-1])
    return outcomes


def update_suite(target: Callable[..., Any], *, xfail: Mapping[str, str] | None = None, **options: Any) -> Any:
    """Tests for pytest, one a law, to be given a name that begins with ``test_``.

    Args:
        target: See ``verify_update``, as the other arguments.
        xfail: Laws that are known not to hold yet, each with the reason; one that holds then fails its test.
        options: ``module``, ``tolerance``, ``device``.
    """
    return suite(UPDATE_LAWS, lambda law: verify_update(target, laws=[law], **options)[0], xfail or {})
