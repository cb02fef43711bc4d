"""The paper's symbols, and other libraries' words, for options, and what they are called here."""

from __future__ import annotations

from collections.abc import Iterable

from decomfl_lab.errors import InputError, require_choice

WORDS = {
    **dict.fromkeys(("K", "local-iterations", "local-epochs", "local-iters"), "local-steps"),
    **dict.fromkeys(("P", "directions", "num-perturbations", "num-directions", "num-pert"), "perturbations"),
    **dict.fromkeys(("M", "N", "num-clients", "n-clients"), "clients"),
    **dict.fromkeys(("m", "num-sampled", "participants", "sample", "clients-per-round"), "sampled"),
    **dict.fromkeys(("R", "T", "epochs", "iterations", "num-rounds", "round", "steps"), "rounds"),
    **dict.fromkeys(("eta", "η", "learning-rate", "step-size"), "lr"),
    **dict.fromkeys(("B", "batch", "batchsize", "bs", "train-batch-size"), "batch-size"),
    **dict.fromkeys(("μ", "smoothing", "zo-eps", "eps"), "mu"),
    **dict.fromkeys(("β", "beta", "beta1"), "momentum"),
    **dict.fromkeys(("λ", "wd", "lambda"), "weight-decay"),
    **dict.fromkeys(("weights", "weighted", "client-weights"), "weighting"),
    **dict.fromkeys(("dataset", "data-set"), "data"),
    **dict.fromkeys(("network", "arch", "model-name"), "model"),
    **dict.fromkeys(("output", "output-dir", "out-dir", "save", "folder"), "out"),
    **dict.fromkeys(("gpu", "cuda"), "device"),
    **dict.fromkeys(("random-seed", "manual-seed"), "seed"),
    **dict.fromkeys(("test-every", "eval-iterations", "eval-interval"), "eval-every"),
}
"""The paper's symbols and other libraries' words for options, and what they are called here."""


def require_option(owner: str, name: str, known: Iterable[str]) -> None:
    """InputError for an option that ``owner`` does not have; it names the one that is meant, or is nearest."""
    names = list(known)
    meant = WORDS.get(name.replace("_", "-"), "").replace("-", "_")
    if name not in names and meant in names:
        raise InputError(f"option of {owner} must be one of its own, got {name!r} (did you mean {meant}?)")
    require_choice(f"option of {owner}", name, names)
