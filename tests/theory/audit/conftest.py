"""What the tests of the audit share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from theory.audit.entry import Evidence


@pytest.fixture(scope="session")
def known() -> dict[Callable[[], Evidence], Evidence]:
    """What the checks of the registry's entries have found: each is run once, whichever test asks first.

    Only for entries as they are: a test that plants a fault gathers anew.
    """
    return {}
