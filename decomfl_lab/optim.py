"""``decomfl_lab.optim.MeZO``: MeZO as an optimizer of torch, for one model in one process, with a log that replays.

    optimizer = MeZO(model.named_parameters(), lr=1e-6, mu=1e-3, log="run.dcl")
    for batch in batches:
        loss = optimizer.step(lambda: model(**batch).loss)

No parameter is written but by the update: torch's functions are given fl(w + fl(μz)) for a parameter w, a tensor at a
time (``objectives.perturbation``). MeZO's own code moves x there and back instead, x + μz − 2μz + μz, which rounds x in
every step. Here x is exactly where it was, so a step is its record, and the log is one that every reader knows.
"""

import copy
import dataclasses
import hashlib
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from msgspec.structs import asdict
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.errors import (
    DivergedError,
    InputError,
    LabWarning,
    is_number,
    known_options,
    require,
    require_choice,
    require_finite_positive,
    require_int,
)
from decomfl_lab.estimators.differences import central
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.methods.decomfl import DeComFL, groups_of
from decomfl_lab.noise import STREAM_VERSION, Distribution, Format, cpu_backend, derive_seed
from decomfl_lab.objectives.function import back, enabled
from decomfl_lab.objectives.modules import require_apart
from decomfl_lab.objectives.perturbation import moved, stamp_of
from decomfl_lab.objectives.trials.lines import LINES, continuous
from decomfl_lab.objectives.trials.needs import Needs
from decomfl_lab.objectives.trials.trial import ROUNDING, STILL, refuse, unlike
from decomfl_lab.objectives.vectors import inner
from decomfl_lab.plugins import OWN
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.protocol.server import DIRECTIONS
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Seeding, draw_seeds
from decomfl_lab.replicas.rebuild import axpy_, rebuild_
from decomfl_lab.replicas.rules import LowPrecision, Momentum, Sgd, Step, UpdateRule, programs_of
from decomfl_lab.runs.configuration import OWN_LOSS, TrainConfig
from decomfl_lab.storage.files import as_path, held_file
from decomfl_lab.storage.outside import MOST_GROUPS, TensorGroup
from decomfl_lab.storage.provenance import code_version
from decomfl_lab.storage.tables import table_beside

__all__ = ["MeZO", "MeZOTraining"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LIGHT = 1 << 20
"""Elements of models of which a gradient is taken before the first step; larger ones come here for want of memory."""
_NUMBERS = {torch.float32: "float32", torch.float64: "float64"}
_STATE = "mezo"
_EARLIER: dict[str, Any] = {"momentum": 0.0, "groups": []}
"""What states of before there was a choice do not say."""
_OF_A_GROUP = ("params", "lr", "weight_decay", "initial_lr", "name")
"""What a group of parameters may say; all else is one for all."""
_RATIO = 1e-9
"""The largest relative difference of two groups' learning rates that is put down to a schedule's rounding."""

Closure = Callable[[], "Tensor | float"]
_Pair = tuple[str | None, nn.Parameter]
"""A parameter, with its name where it has one."""


class MeZO(torch.optim.Optimizer):
    """Gradient descent from two values of the loss along each of P random directions, without a copy of x.

        g_p = (f(x + μ z_p) − f(x − μ z_p)) / 2μ,   x ← (1 − ηλ)x,   x ← x − (η/P) Σ_p g_p z_p
        with momentum:   m ← βm + λx + (1/P) Σ_p g_p z_p,   x ← x − ηm

    Up to rounding both are torch's SGD, with (1/P) Σ_p g_p z_p for the gradient.

    It is an optimizer as torch's: ``step(closure)``, schedulers of the learning rate, ``state_dict``. The closure
    returns the loss of the batch, forward only; it is called 2P times, and some 30 times more in the first step, in
    which it is tried, and twice in each step that writes a digest. Each time torch's random generators are where they
    were, so that dropout is the same. Beside the model it needs one tensor at a time, of those that one function
    of torch takes, and m where there is momentum; the trial of a model of at most 2²⁰ elements takes a gradient, too.

    With ``log`` each step is a record of DeComFL with one client, K = 1, no seeds in it (docs/run-log.md). A step whose
    η is 0 moves nothing and has no record. ``decomfl replay`` makes the model again, bit for bit.

    Attributes:
        steps: The number of steps taken, those with η = 0 left out.

    Source: Malladi et al., "Fine-tuning language models with just forward passes", NeurIPS 2023, Algorithm 1.
    """

    @known_options
    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        mu: float = 1e-3,
        perturbations: int = 1,
        seed: int = 0,
        distribution: str = "gaussian",
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        rounding: str = "stochastic",
        log: Path | str | None = None,
        log_start: bool = False,
        digest_every: int = 100,
        strict: bool = True,
        trust: bool = False,
    ) -> None:
        """An optimizer before its first step; nothing is written until then.

        Args:
            params: ``model.named_parameters()``, whose names go into the log, or ``model.parameters()``; or groups of
                these as torch's, ``{"params": ..., "lr": ..., "weight_decay": ...}``. Frozen ones
                (``requires_grad=False``) are left out.
            lr: The learning rate η, at least 0, of groups that have none of their own. A group's is that of the first
                one times a factor, which is fixed when the group is given.
            mu: The smoothing radius μ.
            perturbations: The number P of directions a step.
            seed: The seed of all directions, 0..2**64-1.
            distribution: The distribution of the directions: gaussian, sphere or rademacher.
            weight_decay: λ of groups that have none of their own. With momentum λx goes into m, as in torch.optim.SGD.
            momentum: β in [0, 1), of all groups. Above 0 each parameter has an m in ``state``, of its shape, type and
                device.
            rounding: How 16-bit parameters are rounded after a step: stochastic (seeded) or nearest.
            log: The file of the log, which must not be there; None for no log.
            log_start: Whether x_0 goes into the log, packed in memory first. Else a replay must be given it.
            digest_every: The number of steps from one digest of x in the log to the next.
            strict: Whether a parameter that a closure does not use is an error.
            trust: Whether to take it on trust that the closure is one function of the parameters, with slopes at μ.

        Raises:
            InputError: If a value breaks a rule, or parameters differ in type.
        """
        given = _listed(params, "be model.named_parameters(), model.parameters(), or a list of groups of them")
        if not any(isinstance(each, Mapping) for each in given):
            given = [{"params": given}]
        self._named: list[_Pair] = []
        self._frozen: list[list[_Pair]] = []  # of each group
        self._groups: list[TensorGroup] = []
        self._lrs: list[float] = []  # of the groups, as they were given
        self._stamps: list[Any] | None = None  # of the parameters after the last step; None before the first one
        self._resumed: tuple[str, str | None] | None = None  # digest of x and chain of the log, as a state has them
        self.steps = 0
        defaults = {"lr": _at_least_zero("lr η", lr), "weight_decay": _at_least_zero("weight_decay λ", weight_decay)}
        super().__init__(given, defaults)
        require(bool(self._named), "parameters", "hold some that are trained (requires_grad)", "none of them")
        require(self._d > 0, "parameters", "have elements", 0)
        dtype = self._named[0][1].dtype
        require_choice("rounding", rounding, ("stochastic", "nearest"))
        require_int("digest_every", digest_every, 1)
        require(is_number(momentum) and 0 <= momentum < 1, "momentum β", "be in [0, 1)", momentum)
        decay = self._groups[0].weight_decay
        rule: UpdateRule = Momentum(float(momentum), weight_decay=decay) if momentum else Sgd(decay)
        if dtype.itemsize == 2:
            rule = LowPrecision(rule, Format(_name_of(dtype)), rounding)  # type: ignore[arg-type]
        self._method = DeComFL(
            mu=require_finite_positive("mu μ", mu),
            perturbations=require_int("perturbations P", perturbations, 1),
            distribution=distribution,
            rule=rule,
            seeds=Seeding.PER_RUN.value,
            lr=1.0,
        )
        self._distribution = Distribution(distribution)
        self.seed = require_int("seed", seed, 0, 2**64 - 1)
        self._run_seed = derive_seed(seed, DIRECTIONS)
        self._path = None if log is None else as_path("log", log)
        self._log_start, self._digest_every, self._strict, self._trust = log_start, digest_every, strict, trust
        self._log: RunLog | None = None
        self._measured: NDArray[np.float32] | None = None
        self._dtype = dtype  # of the last loss
        self._needs, self._resolution = Needs(), Resolution(_NUMBERS.get(dtype, "bfloat16"))
        self._torn = False  # whether an update began and its record is not in the log
        self._loaded = False  # whether a state was loaded

    @property
    def _d(self) -> int:
        return sum(w.numel() for _, w in self._named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``: before the first step.

        Raises:
            InputError: After it, as the log says at its start which parameters there are; or for a group that has not
                ``params``, or parameters that do not go with the others.
        """
        new = not self.steps and self._stamps is None and self._resumed is None
        rule = "be there before the first step: directions and log are those of all parameters"
        require(new, "group of parameters", rule, f"one after {self.steps} steps")
        require(isinstance(param_group, Mapping) and "params" in param_group, "group", "have params", param_group)
        for name in param_group:
            rule = "have params, lr, weight_decay and a name alone: other options are one for all, in MeZO(...)"
            require(name in _OF_A_GROUP, "group", rule, name)
        # Those that are trained, in their order, with names where they have them; and the others.
        params, rule = param_group["params"], "be a list of them, as model.named_parameters() is"
        trained: list[_Pair] = []
        frozen: list[_Pair] = []
        for n, item in enumerate([params] if isinstance(params, Tensor) else _listed(params, rule)):
            pair: Any = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
            name, w = pair
            what = f"parameter {n if name is None else name!r}"
            require(isinstance(w, Tensor), what, "be a tensor: give model.named_parameters()", type(w).__name__)
            require(name is None or isinstance(name, str), f"name of parameter {n}", "be text", name)
            lazy = isinstance(w, nn.parameter.UninitializedParameter)
            require(not lazy, what, "have a shape: call the model once before", "a lazy one")
            if not w.requires_grad:
                frozen.append(pair)
                continue
            require(w.is_leaf, what, "be a leaf, and no result of other tensors", "a result")
            require(w.layout == torch.strided and not w.is_meta, what, "be dense, with values", (w.layout, w.device))
            require(w.dtype in _DTYPES, f"dtype of {what}", f"be one of {', '.join(map(_name_of, _DTYPES))}", w.dtype)
            trained.append(pair)
        every = [*self._named, *trained]
        kinds = sorted({str(w.dtype) for _, w in every})
        require(len(kinds) <= 1, "dtype of the parameters", "be one for all: cast them, or freeze the others", kinds)
        once = len({id(w) for _, w in every}) == len(every)
        require(once, "parameters", "hold each once, as model.named_parameters() does", "one twice")
        names = [name for name, _ in every if name is not None]
        sound = len({*names}) == len(names) and len(names) in (0, len(every))
        require(sound, "names of the parameters", "differ, and be of all or none", names)
        n, group = len(self._groups), self.defaults | param_group
        require(n < MOST_GROUPS, "number of groups", f"be at most {MOST_GROUPS}", n + 1)
        lrs = [*self._lrs, _at_least_zero(f"lr of group {n}" if n else "lr η", group["lr"])]
        rule = "be above 0, as the others are multiples of it: put a group that stands still behind another one"
        sound = not n or (lrs[0] > 0 and math.isfinite(lrs[-1] / lrs[0]))
        require(sound, "lr of the first group", rule, lrs[0])
        decay = _at_least_zero(f"weight_decay of group {n}" if n else "weight_decay λ", group["weight_decay"])
        super().add_param_group({**param_group, "params": [w for _, w in trained]})
        self._named, self._frozen, self._lrs = every, [*self._frozen, frozen], lrs
        self._groups.append(TensorGroup(len(trained), lrs[-1] / lrs[0] if n else 1.0, decay))

    # A step ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(self, closure: Closure) -> float:
        """Measure the scalars of the next step, which ``step()`` then takes; x stays as it is.

        Args:
            closure: The loss of the batch at the parameters as they are when it is called. What it draws comes from
                torch's generators alone, or is the same each time.

        Returns:
            The mean of the 2P losses, which is f(x) up to O(μ²).

        Raises:
            DivergedError: If a loss is no finite number; x and the log are as before.
            InputError: If the closure returns no such number, or another one when it is called again, writes to the
                parameters or does not use one, or somebody else wrote to them since the last step.

        The first closure is tried (``objectives.trials``): a ``LabWarning`` says where the loss jumps, or is not what
        torch's derivative is of.
        """
        require(callable(closure), "closure", "be a function of nothing that returns the loss", closure)
        require(self._measured is None, "measure", "be followed by step(), or zero_grad() to forget it", "another one")
        first = self._begin()
        (seed,) = draw_seeds(Seeding.PER_RUN, self._run_seed, self.steps, 1, self._method.perturbations)
        named = [(name or str(n), w) for n, (name, w) in enumerate(self._named)]
        values = []
        gpus = {w.device for _, w in named if w.is_cuda}
        state = torch.get_rng_state()
        states = {device: torch.cuda.get_rng_state(device) for device in gpus}

        def rewind() -> None:
            """Put torch's random generators back to where they were before the first evaluation."""
            torch.set_rng_state(state)
            for device, state_there in states.items():
                torch.cuda.set_rng_state(state_there, device)

        # What torch.compile made would keep the first direction as a constant: it runs as it was written.
        with torch.compiler.set_stance("force_eager"):

            def evaluated(p: int, c: float) -> float:
                rewind()
                with moved(named, seed, p, c, distribution=self._distribution, strict=self._strict):  # type: ignore[arg-type]
                    loss: Any = closure()
                if not isinstance(loss, Tensor):
                    loss = loss.item() if isinstance(loss, np.ndarray) and loss.size == 1 else loss
                    is_number = isinstance(loss, int | float) and not isinstance(loss, bool)
                    require(is_number, "loss of the closure", "be a number, or a tensor of one", loss)
                    return float(loss)
                require(loss.numel() == 1, "loss of the closure", "be one number", tuple(loss.shape))
                require(not loss.is_complex(), "loss of the closure", "be a real number", loss.dtype)
                self._dtype = loss.dtype if loss.is_floating_point() else self._dtype
                return float(loss.detach())

            def value(p: int, c: float) -> float:
                try:
                    return self._needs.met(partial(evaluated, p, c))
                except RuntimeError as error:
                    if "does not require grad" in str(error):
                        rule = "return the loss without backward(): MeZO needs values alone"
                    elif any(words in str(error) for words in ("being transformed", "doesn't have storage")):
                        rule = "call no torch.func transform (grad, vmap, jvp, ...) of the model, as weights are moved "
                        rule += "one by one; lab.train takes such a loss"
                    else:
                        raise
                    raise InputError(f"closure must {rule}") from error

            if not self._trust and (first or self.steps % self._digest_every == 0):
                # The closure is to be a function of x alone.
                eps = torch.finfo(self._named[0][1].dtype).eps
                remedy = "draw the batch before the closure, and from torch's generators whatever is random in it; "
                for place in (0.0, self._method.mu):
                    refuse(unlike(value(0, place), value(0, place), ROUNDING * eps, remedy=remedy + STILL))
            if not self._trust and first:
                # Differences at μ are to be slopes.
                size = math.hypot(*(float(w.norm()) for _, w in self._named)) / math.sqrt(self._d)
                step = max(self._method.mu / 10, 1e-3 * size)
                exact = torch.finfo(self._dtype).eps  # to which a loss of a model in 16 bits may be computed
                slopes = partial(self._slopes, closure, rewind, seed)  # type: ignore[arg-type]
                for finding in continuous(value, self._method.mu, exact, step=step, slopes=slopes):
                    warnings.warn(finding, LabWarning, stacklevel=4)
            for p, c in central.points(self._method.perturbations, self._method.mu):
                values.append(value(p, c))
        self._require_untouched()
        estimate = central.combine(np.array(values), np.empty(0), self._method.mu)
        if not np.isfinite(estimate.g).all():
            raise DivergedError(f"losses of step {self.steps}", f"(got {values})")
        self._measured = estimate.g
        self._resolution.see(central, self._method.mu, [estimate])
        self._resolution.tell()
        return float(estimate.loss)

    def _slopes(self, closure: Closure, rewind: Callable[[], None], seed: int) -> list[float]:
        """∇fᵀz_p by torch; nothing where there is no gradient, or it may need memory that nobody has given."""
        if self._d > LIGHT:
            return []
        weights: list[Tensor] = [w for _, w in self._named]
        firsts = [0, *accumulate(w.numel() for w in weights)]
        slopes = [0.0] * LINES

        def take(i: int, gradient: Tensor) -> None:
            for p in range(LINES):
                z = torch.zeros(gradient.numel(), device=gradient.device)
                axpy_(z, seed, [1.0], d=self._d, first=firsts[i], first_p=p, distribution=self._distribution)
                slopes[p] += inner(gradient.reshape(-1), z)

        rewind()
        try:
            with enabled():
                loss: Any = closure()
                back([loss], weights, None, take)
        except Exception:  # which no step needs
            return []
        return slopes

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """Measure along the directions of this step, and move x.

        Args:
            closure: See ``measure``; None to take the step that was measured.

        Returns:
            What ``measure`` returns; None without a closure.

        Raises:
            InputError: As ``measure`` does; or if there is neither a closure nor a step that was measured, η is below
                0, or the log cannot be written.
        """
        loss = None if closure is None else self.measure(closure)
        require(self._measured is not None, "closure", "be given, or measure(closure) called before", closure)
        self._require_untouched()
        # η is that of the first group; another one's is what it was as a multiple of η.
        eta = _at_least_zero("lr η", self.param_groups[0]["lr"])
        for n, (group, first) in enumerate(zip(self.param_groups, self._groups, strict=True)):
            lr, wanted = _at_least_zero(f"lr of group {n}", group["lr"]), eta * first.factor
            rule = f"be {first.factor:.6g} times that of group 0, as at the start, here {wanted:.6g}: a schedule that "
            rule += "multiplies all by one number keeps that (lists for max_lr and min_lr, and 0 for eta_min)"
            # A schedule that ends in 0 leaves a rounding of where it began.
            near = math.isclose(lr, wanted, rel_tol=_RATIO, abs_tol=_RATIO * self._lrs[n])
            require(near, f"lr of group {n}", rule, lr)
            decay, rule = group["weight_decay"], f"stay {first.weight_decay}, as the log says it once"
            require(decay == first.weight_decay, f"weight_decay of group {n}", rule, decay)
        g, self._measured = self._measured, None
        assert g is not None
        if not eta:
            return loss
        seeds = draw_seeds(Seeding.PER_RUN, self._run_seed, self.steps, 1, len(g))
        record = RoundRecord(self.steps, eta, self._distribution, seeds, g[None])
        programs = programs_of(self._rules, [Step(seeds[0], g, eta, self._distribution)])
        self._torn = True
        if self._log is not None:  # which is false while it is empty
            try:
                self._log.append(LogEntry(record, (0,), (0,)))  # where that fails x has not moved
            except InputError:
                self._torn = False
                raise
        slots = self._method.rule.slots
        pieces = [{"x": w} | {slot: self.state[w][slot] for slot in slots} for _, w in self._named]
        rebuild_(programs, pieces, backend=cpu_backend())  # a GPU's tensors stay there
        # Torch does not count these writes itself; another optimizer of the same parameters is to see them.
        torch.autograd.graph.increment_version([w for _, w in self._named if not w.is_inference()])
        self._torn, self.steps = False, self.steps + 1
        self._stamps = [stamp_of(vector) for _, vector in self._vectors()]
        if self._log is not None and self.steps % self._digest_every == 0:
            self._log.sign(self.digest())
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what ``measure`` found, and gradients that others have left."""
        self._measured = None
        super().zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """What torch's GradScaler asks for before it takes gradients, of which there are none."""
        rule = "be left out, with fp16 of accelerate: it scales gradients, and MeZO has none; call step(closure)"
        raise InputError(f"GradScaler must {rule}, got one that is enabled")

    # What others may have done ---------------------------------------------------------------------------------------

    def _vectors(self) -> Iterator[tuple[str, Tensor]]:
        """x, and then the momentum, if any, tensor by tensor, with their names; before the first step it is 0."""
        for n, (name, w) in enumerate(self._named):
            yield name or str(n), w.detach()
        for slot in self._method.rule.slots:
            for n, (name, w) in enumerate(self._named):
                vector = self.state.get(w, {}).get(slot)
                yield f"{slot} of {name or n}", torch.zeros_like(w) if vector is None else vector

    def _require_untouched(self) -> None:
        """InputError if x is not what the last step left, as far as torch counts writes."""
        rule = "be taken whole; an error or interrupt cut it short: load the state and the weights of before"
        require(not self._torn, f"step {self.steps}", rule, "a part")
        now = zip(self._vectors(), self._stamps or (), strict=False)  # without stamps there is nothing to compare
        touched = [name for (name, vector), stamp in now if stamp_of(vector) != stamp]
        rule = "be written to by steps alone, as others are not in the log; load_state_dict, or begin anew, after that"
        require(not touched, "parameters", rule, touched)

    def _begin(self) -> bool:
        """Be ready for a step: before the first one, if it is this, x_0 is looked at, and the log begun or found."""
        if self._stamps is not None:
            self._require_untouched()
            return False
        frozen = [pair for group in self._frozen for pair in group]
        require_apart((name or str(n), w) for n, (name, w) in enumerate([*self._named, *frozen]))
        for _, w in self._named:
            for slot in self._method.rule.slots:
                self.state[w].setdefault(slot, torch.zeros_like(w))
        if self._resumed is not None:
            digest, chain = self._resumed
            present = self.digest()
            require(present == digest, "parameters", f"be those of the state, of digest {digest}", present)
            if (path := self._path) is not None:
                # The log up to the present step: entries of steps that were taken after the state was saved are cut.
                with held_file("log", path, threads=True), RunLog.open(path, end=self.steps, write=False) as log:
                    same = len(log) == self.steps and log.chain.hex() == chain
                    if len(log) == self.steps > 0:  # it may have been sealed after the state was saved
                        same = same or log.entry(self.steps - 1).digest == digest
                    require(same, f"log {path}", f"have the {self.steps} steps of the state", f"{len(log)}, or others")
                    self._log = RunLog.open(path, end=self.steps)
        elif self._path is not None:
            self._begin_log(self._path)
        self._rules = groups_of(self._method, self._groups)
        self._resumed = None
        self._stamps = [stamp_of(vector) for _, vector in self._vectors()]
        return True

    def _begin_log(self, path: Path) -> None:
        """A new log, or that of a saved state before the first step: its header says what a replay needs."""
        named = len(self._groups) == 1 or self._named[0][0] is not None
        rule = "be there for a replay of several groups: give (name, parameter) pairs of named_parameters()"
        require(named, "names of the parameters", rule, "none")
        lr = float(self.param_groups[0]["lr"]) or 1.0
        config = TrainConfig(self._method.but({"lr": lr}), clients=1, sampled=1, rounds=1, seed=self.seed)
        config = config.but(model=OWN, data=OWN, loss=OWN_LOSS, log_start=self._log_start)
        start: dict[str, Any] = {"by": "given"}
        packed = b""
        if self._log_start:
            # x_0 is compressed a tensor at a time, 16-bit numbers as float32 ones.
            wide = torch.float64 if self._named[0][1].dtype == torch.float64 else torch.float32
            compressor = zlib.compressobj()
            arrays = (w.detach().cpu().to(wide).contiguous().numpy() for _, w in self._named)
            packed = b"".join([*(compressor.compress(array.tobytes()) for array in arrays), compressor.flush()])
            start = {"by": "file", "dtype": _name_of(wide), "bytes": len(packed)}
        header = {
            "config": config.to_dict(),
            "data": "",
            "source": "closures of an optimizer",
            "classes": 0,
            "shape": [],
            "dtype": "float32",
            "d": self._d,
            "x0": self.digest(),
            "run_seed": self._run_seed,
            "stream": STREAM_VERSION,
            "code": code_version(),
            "start": start,
            "tensors": [{"name": name or "", "shape": list(w.shape)} for name, w in self._named],
        }
        if groups := self._options["groups"]:
            header["groups"] = groups
        rule = "be a new file, or load_state_dict called before, to go on with it"
        with held_file("log", path, threads=True):
            if path.exists():  # the state may be that of before the first step
                with RunLog.open(path, end=0, write=False) as log:
                    same = self._loaded and {**log.header, "code": header["code"]} == header
                require(same, "log", rule, str(path))
            self._log = RunLog.create(path, header, packed)

    # The log ---------------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """BLAKE2b-128 of x, and of the momentum, as hex: what the log has of them."""
        h = hashlib.blake2b(digest_size=16)
        for _, vector in self._vectors():
            h.update(vector.contiguous().view(-1).cpu().view(torch.uint8).numpy().data)
        return h.hexdigest()

    def seal(self) -> None:
        """Have the digest of x in the log's last entry, and the log on the disk: a replay is then checked whole."""
        if self._resumed is not None:  # it was stopped between its last step and this
            self._begin()
        if self._log is None or not self.steps:
            return
        self._require_untouched()
        self._log.sign(self.digest(), sync=True)

    # State -----------------------------------------------------------------------------------------------------------

    @property
    def _options(self) -> dict[str, Any]:
        """All that the directions and the update depend on, but η."""
        plain = self._method.plain()
        named = ("mu", "perturbations", "distribution", "weight_decay", "momentum", "precision", "rounding")
        groups = [asdict(group) for group in self._groups] if len(self._groups) > 1 else []
        return {"seed": self.seed, **{name: plain[name] for name in named}, "groups": groups}

    def state_dict(self) -> dict[str, Any]:
        """See ``torch.optim.Optimizer``: besides η the options, the number of steps, and digests of x and of the log.

        It has nothing of size d but the momentum, if any, which is in ``state`` as torch's own optimizers have it. Save
        the model's weights with it; a log is cut to it when training goes on.
        """
        if self._resumed is not None:  # as it was loaded: the weights may come later
            digest, chain = self._resumed
        else:
            digest, chain = self.digest(), None
            if self._log is not None:
                self._log.sync()  # no state is ahead of its log
                chain = self._log.chain.hex()
        ours = {**self._options, "steps": self.steps, "digest": digest, "chain": chain}
        return {**super().state_dict(), _STATE: ours}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; the model's weights are loaded beside it, which the next step checks.

        Raises:
            InputError: If it is none of a MeZO with these options.
        """
        ours = state_dict.get(_STATE, {})
        require(isinstance(ours, Mapping) and bool(ours), "state", "be one of decomfl_lab.optim.MeZO", list(state_dict))
        ours = _EARLIER | ours
        for name, value in self._options.items():
            require(ours.get(name) == value, f"{name} in the state", f"be {value}, as here", ours.get(name))
        steps = require_int("steps in the state", ours.get("steps"), 0)
        digest, chain = ours.get("digest"), ours.get("chain")
        require(isinstance(digest, str), "digest in the state", "be text", digest)
        super().load_state_dict({name: value for name, value in state_dict.items() if name != _STATE})
        for group, first in zip(self.param_groups, self._groups, strict=True):
            group.setdefault("weight_decay", first.weight_decay)
        for n, (of_w, w) in enumerate(self._named):
            for slot, vector in self.state.get(w, {}).items():
                fits = isinstance(vector, Tensor) and vector.shape == w.shape
                require(fits, f"{slot} of {of_w or n} in the state", f"be a tensor of shape {tuple(w.shape)}", vector)
                self.state[w][slot] = vector.clone()  # the optimizer whose state it is may go on, too
        if self._log is not None:
            self._log.close()
        self._log = self._stamps = self._measured = None
        self._torn, self._loaded, self.steps = False, True, steps
        self._resumed = (digest, chain) if steps or chain else None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle: an optimizer made anew at this state, of the parameters that are copied with it.

        ``copy.deepcopy((model, optimizer))`` goes on apart from the original, to the same bits; ``copy.copy`` has the
        same parameters, where each is told of the other's steps.

        Raises:
            InputError: If the log is open, as one optimizer writes to it; or somebody else wrote to the parameters.
        """
        rule = "have no open log: give its state_dict() to load_state_dict of a new one, which goes on with the log"
        require(self._log is None, "optimizer that is copied or pickled", rule, f"log {self._path}")
        self._require_untouched()
        named = ("mu", "perturbations", "seed", "distribution", "momentum", "rounding")
        options = {name: self._options[name] for name in named} | {"log": self._path, "log_start": self._log_start}
        options |= {"digest_every": self._digest_every, "strict": self._strict, "trust": self._trust}
        options["weight_decay"] = self.defaults["weight_decay"]
        groups, trained = [], iter(self._named)
        for group, frozen, lr in zip(self._groups, self._frozen, self._lrs, strict=True):
            params = [*islice(trained, group.tensors), *frozen]
            groups.append({"params": params, "lr": lr, "weight_decay": group.weight_decay})
        return _made_again, (type(self), groups, self.defaults["lr"], options, self.state_dict())


def _made_again(
    kind: type[MeZO], params: list[dict[str, Any]], lr: float, options: dict[str, Any], state: dict[str, Any]
) -> MeZO:
    made = kind(params, lr, **options)
    made.load_state_dict(state)
    made._loaded = False  # a copy has a log of its own
    return made


# The borders ----------------------------------------------------------------------------------------------------------


def _listed(params: Any, rule: str) -> list[Any]:
    """What there is of parameters, which must have an order."""
    sound = isinstance(params, Iterable) and not isinstance(params, Tensor | Mapping | set | frozenset | str)
    require(sound, "parameters", rule, type(params).__name__)
    return list(params)


def _at_least_zero(name: str, value: Any) -> float:
    number = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
    require(is_number(number) and number >= 0, name, "be a finite number of at least 0", number)
    return float(number)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# transformers ---------------------------------------------------------------------------------------------------------


_DEFAULT, _MEZO = "the default", "what MeZO has"

_NEEDED = table_beside(__name__, "trainer.toml")
"""What arguments of a Trainer may be, by name, and the rule in words."""


class MeZOTraining:
    """Steps of ``MeZO`` in a Trainer of transformers: a class to put before it.

        class MeZOTrainer(MeZOTraining, transformers.Trainer): ...

        MeZOTrainer(model, args, optimizers=(MeZO(model.named_parameters(), lr=1e-6), None), ...).train()

    The Trainer's loop, schedules, evaluation, callbacks and checkpoints stay as they are. A callback of transformers
    gets neither the batch nor the loss, and could not keep the Trainer from its backward pass, so it is this method
    that is exchanged. The model is in eval mode while it is measured, as in MeZO's own trainer. Arguments that are for
    gradients, or for other optimizers, are refused before the first step.
    """

    args: Any
    optimizer: Any
    state: Any

    @property
    def _mezo(self) -> MeZO:
        """The optimizer inside of accelerate's."""
        inner_one = getattr(self.optimizer, "optimizer", self.optimizer)
        rule = "be (decomfl_lab.optim.MeZO(...), None), or have a scheduler where None is"
        require(isinstance(inner_one, MeZO), "optimizers", rule, type(inner_one).__name__)
        return inner_one  # type: ignore[no-any-return]

    def train(self, *args: Any, **options: Any) -> Any:
        """See ``Trainer.train``; at the end the log gets the digest of the model, as the last step left it.

        Raises:
            InputError: If an argument is for gradients, another optimizer, or several processes.
        """
        given = self.args
        # Where there is no optimizer yet, the user's method that makes it reads these arguments.
        of_mezo = {"learning_rate": given.learning_rate, "weight_decay": given.weight_decay}
        if self.optimizer is not None:
            group = self._mezo.param_groups[0]
            of_mezo = {"learning_rate": group.get("initial_lr", group["lr"])}
            of_mezo["weight_decay"] = self._mezo.defaults["weight_decay"]
        fields = dataclasses.fields(given)
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        for name, (allowed, rule) in _NEEDED.items():
            argument = getattr(given, name, None)
            known = {_DEFAULT: defaults.get(name, argument), _MEZO: of_mezo.get(name)}
            values = [known.get(value, value) for value in allowed]
            # None, False and an empty list all say that there is nothing.
            nothing = not argument and not values[0]
            require(nothing or argument in values, f"{name} of the arguments", rule, argument)
        result = super().train(*args, **options)  # type: ignore[misc]
        if not (self.args.load_best_model_at_end and self.state.best_model_checkpoint):
            self._mezo.seal()
        return result

    def _load_best_model(self) -> None:
        """See ``Trainer``: the log is sealed before other weights than the last step's are loaded."""
        self._mezo.seal()
        super()._load_best_model()  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """See ``Trainer``, which would begin anew where the state is missing: with the directions of before."""
        complete = checkpoint is None or any(Path(checkpoint).glob("optimizer*"))
        require(complete, "checkpoint", "have the state of the optimizer (save_only_model=False)", checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """See ``Trainer.log``; the norm of gradients, of which there are none, would be logged as 0."""
        logs.pop("grad_norm", None)
        super().log(logs, *args, **options)  # type: ignore[misc]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """See ``Trainer.training_step``: the scalars are measured; the loop then calls ``step``."""
        trainer: Any = self
        model.eval()
        inputs = trainer._prepare_inputs(inputs)

        def loss() -> Tensor:
            batch = copy.deepcopy(inputs)  # the Trainer takes the labels out of what it is given
            with trainer.compute_loss_context_manager():
                value: Tensor = trainer.compute_loss(model, batch, num_items_in_batch=num_items_in_batch)
            return value

        return torch.tensor(self._mezo.measure(loss), device=self.args.device)
