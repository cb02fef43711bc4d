"""Ways to train by scalars: each is replayed from its log, goes on by it, and ends with its bits when it is killed."""

from typing import Any

VARIANTS: list[dict[str, Any]] = [
    {},
    {"rebuild": "copy", "momentum": 0.9, "weight_decay": 1e-3},
    {"tracking": "clients", "seeds": "per-run", "private_seeds": True, "distribution": "sphere"},
    {"tracking": "clients", "seeds": "per-direction", "eval_every": 2, "split": "dirichlet"},
    {"log_kappa": True, "perturbation_schedule": {}},
    {"pull": "auto", "history": 2, "server_model": True},
    {"method": "decomfl-projection", "rule": "adamm", "rebuild": "copy"},
    {"precision": "bfloat16"},
    {"precision": "bfloat16", "rounding": "compensated", "log_start": True},
    {"precision": "float16", "log_start": True},
    {"lean": True, "grid": -20, "model": "mlp", "log_start": True},
    {"method": "feedsign"},
    {"method": "fedkseed"},
    {"method": "fzoo"},
    {"method": "hiso"},
    {"method": "baffle", "seeds": "per-direction"},
    {"aggregation": "trimmed", "sampled": 4},
    {"weighting": "examples", "seeds": "per-run"},
    {"perturbation_schedule": {3: 5}, "lr_schedule": {4: 0.005}},
    {"rule": "sign"},
    {"server_model": True, "momentum": 0.0, "log_start": True},
]
