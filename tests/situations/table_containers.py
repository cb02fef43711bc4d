"""More of what is given: tables, masks, fields, graphs, other kinds of numbers, streams, parameters by themselves."""

import itertools
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression
from torch.utils.data import DataLoader

from tests.decomfl_lab.datasets.test_batches import Rows
from tests.situations import table_given, zoo
from tests.situations.judge import RIGHT, Of, refused
from tests.situations.zoo import BATCHES, N, X, Y, ce, mean_ce, mlp

at = TABLE = table_given.TABLE
x, y = X.numpy(), Y.numpy()
ROWS = [*zip(x, y, strict=True)]


def taken(name, data, module=mlp, loss=ce, f=mean_ce):
    """Both doors take it, for ``X`` and ``Y`` unless f says otherwise."""
    at(name, both=RIGHT)(module, loss, data, f, clients=[data])


def told(name, word, data, loss=ce):
    """Both doors say in a line what is wrong."""
    at(name, both=refused(word))(mlp, loss, data, mean_ce, clients=[data])


def of(inputs):
    return lambda net: ce(net(torch.as_tensor(inputs).double()), Y)


class Anew:
    """An iterator anew each time that it is asked for one."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


# --- tables -----------------------------------------------------------------------------------------------------------

FRAME, SERIES = pd.DataFrame(x, columns=[*"abcd"]), pd.Series(y)
_count, _flag = np.arange(N) % 5, x[:, 1] > 0
_counts, _flags = np.c_[_count, x[:, 1:]], np.c_[x[:, 0], _flag, x[:, 2:]]
taken("tables: (frame, series)", (FRAME, SERIES))
taken("tables: of other indices, by their places", (FRAME.set_axis(range(N, 2 * N)), SERIES))
taken("tables: columns that may lack a number, and do not", (FRAME.astype("Float32"), SERIES.astype("Int64")))
taken("tables: whole numbers in a column", (FRAME.assign(a=_count), SERIES), f=of(_counts))
taken("tables: true and false in a column", (FRAME.assign(b=_flag), SERIES), f=of(_flags))
taken("tables: batches of a frame", [(FRAME[a : a + 11], SERIES[a : a + 11]) for a in range(0, N, 11)])
taken("tables: rows of a frame in a Dataset", Rows([(FRAME.iloc[n], y[n]) for n in range(N)]))
taken("tables: a mapping of them", {"h": FRAME, "labels": SERIES}, zoo.own_loss(), None, zoo.inner_ce)
told("tables: a column of words", "'c'.*number", (FRAME.assign(c="word"), SERIES))
told("tables: a missing label", "missing", (FRAME, SERIES.astype("Int64").where(SERIES.index > 3)))
told("tables: a missing number", "finite", (FRAME.assign(a=FRAME.a.where(FRAME.index > 3)), SERIES))
told("tables: labels that are categories", "codes", (FRAME, SERIES.astype(str).astype("category")))
told("tables: the same rows in two orders", "one order", (FRAME, SERIES.iloc[::-1]))
at("tables: clients=(frame, series), without the list", train=refused(r"\[\("))(clients=(FRAME, SERIES))

# --- masks ------------------------------------------------------------------------------------------------------------

_lacks = np.arange(4 * N).reshape(N, 4) % 7 == 0
HIDDEN = np.ma.masked_array(np.where(_lacks, np.float32(-9999), x), mask=_lacks)
OPEN = np.ma.masked_array(x, mask=np.zeros_like(x, bool))
MASKED_ROWS = [*zip(HIDDEN, y, strict=True)]
told("masks: inputs", "mask", (HIDDEN, y))
told("masks: rows of a DataLoader", "mask", DataLoader(Rows(MASKED_ROWS), batch_size=11, num_workers=1))
taken("masks: of nothing, rows of a DataLoader", DataLoader(Rows([*zip(OPEN, y, strict=True)]), batch_size=11))

# --- fields -----------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "inputs targets")
Turned = namedtuple("Turned", "label image")
Example = namedtuple("Example", "image label index")
NUMBERS = torch.arange(N)
TRIPLES = [(*batch, NUMBERS[: len(batch[1])]) for batch in BATCHES]
FIELDS = r"loss\(model, batch\)"


told("fields: (x, y, index) in batches", rf"{FIELDS}.*\(11, 4\).*\(11,\).*\(11,\)", TRIPLES)
told("fields: three with names", "image.*label.*index", [Example(*batch) for batch in TRIPLES])
told("fields: a label named before the image", "label.*image", [Turned(b, a) for a, b in BATCHES])
taken("fields: (x, y, index) for a loss of (model, batch)", (X, Y, NUMBERS), loss=zoo.plus(lambda net: 0))
taken("fields: the first two of three", Anew(lambda: ((a, b) for a, b, *_ in TRIPLES)))
taken("fields: a pair with names", Pair(X, Y))
taken("fields: pairs with names in a DataLoader", DataLoader(Rows([Pair(*row) for row in ROWS]), batch_size=11))

# --- sparse ones, graphs, models of other libraries -------------------------------------------------------------------

CSR, SPARSE = scipy.sparse.csr_matrix(x), X.to_sparse()
GRAPH = SimpleNamespace(x=X, edge_index=torch.arange(90).view(2, 45) % N, y=Y)


def on_nodes(model, batch):
    return ce(model(batch["x"]), batch["y"])


told("sparse: a matrix of scipy", r"toarray\(\)", (CSR, y))
told("sparse: a tensor", r"to_dense\(\)", (SPARSE, Y))
told("graphs: a graph object", "edge_index", GRAPH)
told("graphs: graph objects for a loss of (model, batch)", "edge_index", [GRAPH], on_nodes)
at("graphs: its tensors in a mapping", kappa=RIGHT)(mlp, on_nodes, [vars(GRAPH)], mean_ce)
at("a fitted net of skorch", both=refused("module_"))(lambda: SimpleNamespace(module_=mlp(), fit=None))
at("an estimator of scikit-learn", both=refused(r"torch\.nn\.Module"))(LogisticRegression)

# --- kinds of numbers -------------------------------------------------------------------------------------------------

PIXELS = (40 * x + 128).clip(0, 255).astype("uint16")


_pixels = torch.from_numpy(PIXELS.astype("int64")).double() / 255
taken("numbers: uint64 for classes", (x, y.astype("uint64")))
taken("numbers: uint32 for classes, a tensor", (X, Y.to(torch.uint32)))
for _kind, _values in {">f4": (x.astype(">f4"), y), ">i8": (x, y.astype(">i8"))}.items():
    taken(f"numbers: of the other byte order, {_kind}", _values)
taken("numbers: uint16 for pixels", (PIXELS, y), zoo.scaled_bytes, f=lambda net: ce(net.inner(_pixels), Y))
told("numbers: uint64 that int64 has not", "int64", (x, y.astype("uint64") + 2**63))
told("numbers: a structured array", "field", (np.zeros(N, [("a", "f4"), ("b", "f4")]), y))
told("numbers: words for classes", "number", (x, np.array(["a", "b"])[y % 2]))
told("numbers: float64 that float32 does not tell apart", "subtract their mean", (x.astype("f8") + 1e8, y))
told("numbers: longer than torch has them", "float64", (x.astype(np.longdouble), y))

# --- streams ----------------------------------------------------------------------------------------------------------

told("streams: a generator without an end", "islice", Anew(lambda: ((X, Y) for _ in itertools.count())))
taken("streams: one batch two hundred times", Anew(lambda: itertools.repeat((X, Y), 200)))
_order = torch.Generator().manual_seed(3)
taken("streams: an order by a generator of its own", DataLoader(Rows(ROWS), 11, shuffle=True, generator=_order))

# --- parameters by themselves -----------------------------------------------------------------------------------------


def chosen(name, verdict, choose, module=mlp):
    at(f"parameters: {name}", kappa=verdict.given(parameters=Of(choose)))(module, f=mean_ce)


frozen_first = zoo.changed(mlp, lambda model: model[0].weight.requires_grad_(False))
chosen("a list of all tensors, in another order", RIGHT, lambda module: [*module.parameters()][::-1])
chosen("tensors beside names", RIGHT, lambda module: ["0", module[2].weight, module[2].bias])
chosen("the mapping of named_parameters()", RIGHT, lambda module: dict(module.named_parameters()))
chosen("those that are trained", RIGHT, lambda own: [p for p in own.parameters() if p.requires_grad], frozen_first)
chosen("one of another module", refused("of the module"), lambda module: [mlp()[0].weight])
chosen("one that is frozen", refused("frozen"), lambda module: [module[0].weight], frozen_first)
chosen("a number", refused("parameters"), lambda module: [3])
