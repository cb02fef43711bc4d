"""The methods by name; one of your own is ``module:Class``."""

from decomfl_lab.errors import require, require_choice
from decomfl_lab.methods.baffle import Baffle
from decomfl_lab.methods.decomfl import DeComFL, DeComFLProjection, Lagging
from decomfl_lab.methods.fedavg import FedAvg
from decomfl_lab.methods.fedavg_topk import FedAvgTopK
from decomfl_lab.methods.fedcom import FedCom
from decomfl_lab.methods.fedkseed import FedKSeed
from decomfl_lab.methods.fedzo import FedZO, FedZOProjection
from decomfl_lab.methods.feedsign import FeedSign
from decomfl_lab.methods.fzoo import FZOO
from decomfl_lab.methods.hiso import HiSo
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.mezo import MeZO
from decomfl_lab.plugins import named

METHODS: dict[str, type[Method]] = {
    each.name: each
    for each in (
        *(DeComFL, DeComFLProjection, HiSo, FZOO, FeedSign, FedKSeed),
        *(FedZO, FedZOProjection, FedAvg, FedCom, FedAvgTopK, Baffle, MeZO),
    )
}

LAGGING = [name for name, kind in METHODS.items() if issubclass(kind, Lagging)]
"""Those whose clients send scalars and keep their model; in other processes, if need be."""


def find_method(name: str) -> type[Method]:
    """The method ``name``, a key of ``METHODS`` or ``module:Class``; InputError if there is none."""
    if ":" not in name:
        return METHODS[require_choice("method", name, METHODS)]
    kind = named("method", name)
    is_method = isinstance(kind, type) and issubclass(kind, Method)
    require(is_method, "method", "be a name or module:Class of a decomfl_lab.methods.method.Method", name)
    method: type[Method] = kind
    return method


def name_of(method: Method) -> str:
    """What ``find_method`` finds the method by."""
    kind = type(method)
    module = kind.__module__.rpartition(" of ")[2]  # of a file, its path
    return kind.name if METHODS.get(kind.name) is kind else f"{module}:{kind.__qualname__}"
