"""Parameters that share memory, or lie where no complex view takes them; and losses that differentiate inside."""

import torch
from torch import nn

from tests.situations.judge import RIGHT, Table, refused
from tests.situations.zoo import REAL, X64, X, ce

at = TABLE = Table()
BOTH = refused(r"parameters '0.weight' and '2.weight' must share no memory.*\(self\[2\].weight = self\[0\].weight\)")
START = refused("'0.weight' and 'start' must share no memory")


def square(flat, first, step=1):
    return flat[first : first + 16 * step : step].view(4, 4)


def net(second=lambda flat: square(flat, 16), first=lambda flat: square(flat, 0), tie=lambda net: None):
    """It makes two layers, whose weights are such views of one vector of random numbers."""

    def make():
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
        flat = torch.randn(40)
        model[0].weight, model[2].weight = nn.Parameter(first(flat)), nn.Parameter(second(flat))
        tie(model)
        return model

    return make


def assigned(model):
    model[2].weight = model[0].weight
    model.load_state_dict(model.state_dict(), assign=True)


class Fourier(nn.Module):
    """A layer of complex weights behind an odd number of others."""

    def __init__(self):
        super().__init__()
        self.scale, self.w = nn.Parameter(torch.ones(1)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        return torch.fft.irfft(torch.view_as_complex(self.w) * torch.fft.rfft(self.scale * x), n=4)


class Field(nn.Sequential):
    """A net's values beside its inputs, in which a loss differentiates them."""

    def __init__(self):
        super().__init__(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x):
        x = x.detach().clone().requires_grad_()
        return super().forward(x), x


def equation(found, targets):
    u, x = found
    return (torch.autograd.grad(u.sum(), x, create_graph=True)[0].square().sum(1) - targets).square().mean()


def of_model(model, batch):
    return equation(model(batch[0]), batch[1])


def first_three(o, targets):
    return ce(o[:, :3], targets)


for _name, _make, _verdict in [
    ("two parameters over one storage", net(lambda flat: square(flat, 0)), BOTH),
    ("one is the other transposed", net(lambda flat: square(flat, 0).t()), BOTH),
    ("tied weights after load_state_dict(assign=True)", net(tie=assigned), BOTH),
    ("strided, with a common element", net(lambda flat: square(flat, 2, 2), lambda flat: square(flat, 0, 2)), BOTH),
    ("a frozen one", net(lambda flat: square(flat, 15), tie=lambda m: m[2].requires_grad_(False)), BOTH),
    ("a buffer", net(tie=lambda m: m.register_buffer("start", m[0].weight.data)), START),
    ("expanded", net(first=lambda flat: flat[:4].expand(4, 4)), refused("'0.weight' must have memory for each")),
    ("disjoint views of one vector", net(), RIGHT),
    ("strided ones that interleave", net(lambda flat: square(flat, 1, 2), lambda flat: square(flat, 0, 2)), RIGHT),
]:
    at(_name, both=_verdict, optim=_verdict)(_make, first_three)

at("a view of a parameter that is an attribute", kappa=RIGHT, train=START)(
    net(tie=lambda model: setattr(model, "start", model[0].weight.data)), first_three
)
# The second derivative of a complex view fails in torch, too, where a row of H begins at an odd place.
at("view_as_complex of a parameter at an odd place", both=RIGHT, optim=RIGHT)(Fourier, first_three, values=True)
for _name, _loss in {"outputs": equation, "(model, batch)": of_model}.items():
    at(f"autograd.grad inside of a loss of {_name}", both=RIGHT, optim=RIGHT)(
        Field, _loss, [(X, REAL[:, 0])], lambda net: equation(net(X64), REAL[:, 0].double())
    )
