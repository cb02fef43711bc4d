"""What ``decomfl train`` does by default: central differences and momentum, in one local step or several.

Besides, for one local step of plain SGD, what holds of the last iterate, or of f itself, where f has more than a lower
bound.

Every bound of the default run is one of two theorems, for one local step or for any number, at one of three sets of
assumptions. An assumption gives r, B² and W of ``docs/theory-more.md``: how much larger a step along random directions
is than one along the gradient, the squared bias of the scalars' differences, and their second moment. They are the
rows of ``default_run.toml``.
"""

from typing import Final

from decomfl_lab.storage.tables import table_beside
from theory.bounds.paper import statements

DEFAULT_RUN: Final = tuple(statements(table_beside(__name__, "default_run.toml")))
