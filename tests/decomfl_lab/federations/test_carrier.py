"""A federation of one's own, by the protocol of who carries clients elsewhere and nothing more."""

import pytest
import torch

import decomfl_lab as lab
from decomfl_lab.cli import train as command
from decomfl_lab.errors import InputError
from decomfl_lab.federations.carrier import Elsewhere
from tests.decomfl_lab.federations.direct import Direct

CLIENTS = [(torch.randn(8, 3, generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in range(3)]


class Hosts:
    """Every client in a host of its own, in this process."""

    def carrier(self, make, M):
        return Direct({i: make([i]) for i in range(M)})


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def trained(**options):
    return lab.train(model(), clients=CLIENTS, perturbations=3, rounds=5, sampled=2, eval_every=2, **options)


def test_a_run_with_its_clients_there_is_the_run_of_one_process_to_the_bit():
    here, there = trained(), trained(federation=Hosts())
    assert here.metrics.drop(columns="seconds").equals(there.metrics.drop(columns="seconds"))
    assert torch.equal(here.federation.x, there.federation.x)
    assert (bool(there.verify()), there.verify().clients) == (True, 3)


def test_it_goes_on_in_one_process_and_there_again(tmp_path):
    trained(federation=Hosts(), out=tmp_path)
    expected = trained().more(2).federation.x
    for federation in (None, Hosts()):
        again = lab.load(tmp_path, model(), clients=CLIENTS, federation=federation)
        assert torch.equal(again.more(2, out=None).federation.x, expected)


def test_what_has_no_carrier_is_refused():
    assert isinstance(lab.Ray(), Elsewhere)
    with pytest.raises(InputError, match=r"federation must be lab.Ray\(workers=N\), or None .* got 'ray'"):
        trained(federation="ray")


def test_the_command_line_knows_it_by_its_entry_point(monkeypatch):
    class Entry:
        name = "hosts"

    monkeypatch.setattr(command, "contributed", lambda group: [Entry])
    monkeypatch.setattr(command, "load", lambda group, name: Hosts)
    assert isinstance(command._elsewhere("hosts", None), Hosts)
    with pytest.raises(InputError, match="federation must be one of in-process, hosts, got 'ray'"):
        command._elsewhere("ray", None)
