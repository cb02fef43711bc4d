"""The paper's parts where no data are, and at sizes that a test has time for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.language_models import llm, sizes, smollm2
from paper_repro.workflow.scales import SCALES


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of language models can be listed where no data are."""
    for part in (llm, sizes, smollm2):
        monkeypatch.setattr(part, "missing", lambda names, models, pretrained: "")
    monkeypatch.setattr(smollm2, "weights", lambda: Path("toy"))


@pytest.fixture
def smoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The smoke scale has these sizes of parts from now on."""
    return lambda **sizes: monkeypatch.setitem(SCALES, "smoke", SCALES["smoke"].but(**sizes))
