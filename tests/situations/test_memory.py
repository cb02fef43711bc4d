"""Parameters that share memory, or lie in x at a place that torch's complex view does not take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import decomfl_lab as lab
from decomfl_lab.optim import MeZO
from tests.nets import seeded
from tests.situations.situation import RIGHT, X64, Case, Situation, Table, X, Y, ce, every, refused

TABLE = Table()
DATA = [(X, Y)]
APART = refused(r"parameters '0.weight' and '2.weight' must share no memory.*\(self\[2\].weight = self\[0\].weight\)")


def pair():
    """Two square layers."""
    return seeded(lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)))


def over(first, second):
    """The two with weights that are such views of one vector of random numbers."""

    def make():
        model = pair()
        flat = torch.randn(40, generator=torch.Generator().manual_seed(5))
        model[0].weight, model[2].weight = (nn.Parameter(part(flat)) for part in (first, second))
        return model

    return make


def assigned():
    """What is left of tied weights once a state is loaded in their place."""
    model = pair()
    model[2].weight = model[0].weight
    model.load_state_dict(model.state_dict(), assign=True)
    return model


def beside_a_frozen_one():
    model = over(lambda flat: flat[:16].view(4, 4), lambda flat: flat[15:31].view(4, 4))()
    model[2].requires_grad_(False)
    return model


def beside_a_buffer():
    model = pair()
    model.register_buffer("start", model[0].weight.data)
    return model


def beside_an_attribute():
    model = pair()
    model.start = model[0].weight.data
    return model


SHARED = {
    "two parameters over one storage": (over(lambda f: f[:16].view(4, 4), lambda f: f[:16].view(4, 4)), APART),
    "one is the other transposed": (over(lambda f: f[:16].view(4, 4), lambda f: f[:16].view(4, 4).t()), APART),
    "tied weights after load_state_dict(assign=True)": (assigned, APART),
    "strided ones with an element in common": (
        over(lambda f: f[:32:2].view(4, 4), lambda f: f[2:34:2].view(4, 4)),
        APART,
    ),
    "a trained one and a frozen one": (beside_a_frozen_one, APART),
    "a parameter and a buffer": (beside_a_buffer, refused("'0.weight' and 'start' must share no memory")),
    "an expanded view": (
        over(lambda f: f[:4].expand(4, 4), lambda f: f[4:20].view(4, 4)),
        refused("parameter '0.weight' must have memory for each"),
    ),
    "disjoint views of one vector": (over(lambda f: f[:16].view(4, 4), lambda f: f[16:32].view(4, 4)), RIGHT),
    "strided ones that interleave": (over(lambda f: f[:32:2].view(4, 4), lambda f: f[1:33:2].view(4, 4)), RIGHT),
}
for _name, (_make, _verdict) in SHARED.items():

    @TABLE.add(_name, both=_verdict)
    def _(make=_make):
        return Case(make(), lambda o, t: ce(o[:, :3], t), DATA, lambda net: ce(net(X64)[:, :3], Y))


@TABLE.add("a view of a parameter that is an attribute", train=refused("'0.weight' and 'start' must"), kappa=RIGHT)
def _():
    return Case(beside_an_attribute(), lambda o, t: ce(o[:, :3], t), DATA, lambda net: ce(net(X64)[:, :3], Y))


@every(TABLE)
def test_memory(situation: Situation) -> None:
    situation.judge()


@pytest.mark.parametrize("name", SHARED)
def test_the_optimizer_refuses_the_same(name: str) -> None:
    make, verdict = SHARED[name]
    model = make()
    named = [*model.named_parameters(), *model.named_buffers()]
    optimizer = MeZO(named, 0.1)
    if verdict.right:
        optimizer.step(lambda: ce(model(X)[:, :3], Y))
        return
    with pytest.raises(lab.InputError, match=verdict.word):
        optimizer.step(lambda: ce(model(X)[:, :3], Y))
