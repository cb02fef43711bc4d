"""FedAvg: K local first-order steps; models both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decomfl_lab.errors import require
from decomfl_lab.federations.averaging import SERVER_OPTIMIZERS, FedAvgFederation, ServerOptimizer, Uplink, whole_model
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, models_both_ways
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.shared_options import HELP, weighting_option
from decomfl_lab.options import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decomfl_lab.engines.base import Engine
    from decomfl_lab.objectives.objective import Objective

LOCAL_OPTIMIZERS = ("sgd", "adam")
KEPT, FRESH = "kept", "fresh"


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """K local first-order steps; models both ways.

        client:  x_{i,r}^{k+1} = optimizer(x_{i,r}^k, ∇f_i(x_{i,r}^k; ξ)),   k = 1..K
        server:  x̄_r = (1/m) Σ_i x_{i,r}^{K+1}, or Σ_i n_i x_{i,r}^{K+1} / Σ_i n_i,   x_{r+1} = x̄_r

    With another server optimizer x_{r+1} is a step of the server along the update Δ_r = x̄_r − x_r, with m_{−1} = 0 and
    v_{−1} = τ²:

        sgd:     x_{r+1} = x_r + η_s Δ_r
        others:  m_r = β₁ m_{r−1} + (1 − β₁) Δ_r,   x_{r+1} = x_r + η_s m_r / (√v_r + τ),   v_r = v_{r−1} + Δ_r²
                 (adagrad), β₂ v_{r−1} + (1 − β₂) Δ_r² (adam), v_{r−1} − (1 − β₂) Δ_r² sign(v_{r−1} − Δ_r²) (yogi)

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017;
    Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2 (FedAdagrad, FedAdam, FedYogi).
    """

    name: ClassVar[str] = "fedavg"
    gradients: ClassVar[bool] = True

    local_steps: int = option(1, "The number K of local steps a round.", symbol="K", ge=1)
    optimizer: str = option("sgd", "The local optimizer: sgd or adam.", "optimizer", choices=LOCAL_OPTIMIZERS)
    momentum: float = option(0.9, "The momentum β of sgd in [0, 1).", "optimizer", symbol="β", ge=0, lt=1)
    weight_decay: float = option(1e-5, "The weight decay λ.", "optimizer", symbol="λ", ge=0)
    optimizer_state: str = option(KEPT, HELP["optimizer_state"], "optimizer", earlier=FRESH, choices=(KEPT, FRESH))
    weighting: str = weighting_option()
    server_optimizer: str = option(
        "sgd",
        HELP["server_optimizer"].format(optimizers=", ".join(SERVER_OPTIMIZERS)),
        "optimizer",
        rare=True,
        choices=SERVER_OPTIMIZERS,
    )
    server_lr: float = option(1.0, HELP["server_lr"], "optimizer", rare=True, gt=0)
    server_beta1: float = option(0.9, "The β₁ of adagrad, adam and yogi in [0, 1).", "optimizer", rare=True, ge=0, lt=1)
    server_beta2: float = option(0.99, "The β₂ of adam and yogi in [0, 1).", "optimizer", rare=True, ge=0, lt=1)
    server_tau: float = option(1e-3, "The adaptivity τ of adagrad, adam and yogi.", "optimizer", rare=True, gt=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        # None of the server's options is given that its optimizer has no use for.
        kind, options = self.server().name, self.options()
        unused = {"sgd": ("beta1", "beta2", "tau"), "adagrad": ("beta2",)}.get(kind, ())
        for name in (f"server_{suffix}" for suffix in unused):
            rule = f"be left out with server_optimizer {kind}, which has no use for it"
            require(getattr(self, name) == options[name].default, name, rule, getattr(self, name))

    def server(self) -> ServerOptimizer:
        """How the server goes along the mean update."""
        return ServerOptimizer(
            name=self.server_optimizer,
            lr=self.server_lr,
            beta1=self.server_beta1,
            beta2=self.server_beta2,
            tau=self.server_tau,
        )

    def uplink(self, setting: TrainingSetting) -> Uplink:  # noqa: ARG002
        """How a trained copy comes back."""
        return whole_model

    def federation(self, setting: TrainingSetting) -> FedAvgFederation:
        clients = [FedAvgClient(objective, self, setting.engine) for objective in setting.objectives]
        return FedAvgFederation(
            setting,
            clients,
            K=self.local_steps,
            eta=self.eta,
            uplink=self.uplink(setting),
            weighting=self.weighting,
            optimizer=self.server(),
        )

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """See ``Method.traffic``: R·q times a model each way."""
        return models_both_ways(cohort, d, weighting=self.weighting)


_KEPT_NAMES = {"sgd": {"momentum_buffer"}, "adam": {"step", "exp_avg", "exp_avg_sq"}}
"""What torch's optimizers note of a tensor."""


class FedAvgClient:
    """K local first-order steps from the server's model, on a copy of its own.

    "sgd" with momentum β is torch's: v ← βv + (∇f_i(x; ξ) + λx), x ← x − ηv; "adam" is torch's Adam with its
    default β₁, β₂ and ε.
    """

    def __init__(self, objective: Objective, method: FedAvg, engine: Engine) -> None:
        self.objective, self.method, self.engine = objective, method, engine
        self.steps_taken = 0
        notes = method.optimizer == "adam" or method.momentum > 0
        # what the optimizer has noted, vectors (d,) by torch's names for them, from round to round: v, or Adam's two
        # moments and its number of steps; empty before the first step. None where each round begins anew, or plain SGD,
        # which notes nothing.
        self.kept_tensors: dict[str, Tensor] | None = {} if notes and method.optimizer_state == KEPT else None

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """See ``Trainer``; InputError where a checkpoint has other notes than the optimizer has taken."""
        import torch

        trained, decay = x.clone(), self.method.weight_decay
        optimizer: torch.optim.Optimizer
        if self.method.optimizer == "adam":
            optimizer = torch.optim.Adam([trained], lr=eta, weight_decay=decay, foreach=False)
        else:
            momentum = self.method.momentum
            optimizer = torch.optim.SGD([trained], lr=eta, momentum=momentum, weight_decay=decay, foreach=False)
        if self.kept_tensors is not None and self.steps_taken:
            # With other notes than its own torch would begin anew, without a word.
            notes, names = self.kept_tensors, _KEPT_NAMES[self.method.optimizer]
            require({*notes} == names, "tensors that a client keeps", f"be {sorted(names)}", sorted(notes))
            for name, note in notes.items():
                right = () if name == "step" else x.shape
                fits = note.shape == right and note.dtype in (x.dtype, torch.float32)
                require(fits, f"{name} that a client keeps", f"be of shape {tuple(right)}", (note.shape, note.dtype))
            optimizer.state[trained] = notes
        losses = []
        for _ in range(K):
            loss, gradient = self.engine.gradients([trained], [(self.objective, self.steps_taken)])
            trained.grad = gradient[0].to(trained.dtype)
            optimizer.step()
            losses.append(loss[0])
            self.steps_taken += 1
        trained.grad = None
        if self.kept_tensors is not None:
            self.kept_tensors = dict(optimizer.state[trained])
        if hasattr(self.objective, "release"):
            self.objective.release()
        return trained, float(np.mean([float(loss) for loss in losses]))
