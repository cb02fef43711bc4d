"""Words of the paper and of other libraries for options: each names the option that is meant, where there is one."""

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.options import WORDS, require_option
from decomfl_lab.runs.configuration import run_options
from tests.tables import rows_of

KNOWN = [*run_options(), *(name for method in METHODS.values() for name in method.options()), "device", "out"]


@pytest.mark.parametrize("word", WORDS)
def test_every_word_names_an_option_that_exists_and_is_none_itself(word: str) -> None:
    assert WORDS[word].replace("-", "_") in KNOWN
    assert word not in [name.replace("_", "-") for name in run_options()]


@pytest.mark.parametrize(("name", "meant"), rows_of(__file__)["rows"])
def test_a_word_from_elsewhere_is_told_what_it_is_called_here(name: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        require_option("decomfl", name, ["local_steps", "clients", "mu", "lr"])
    wanted = f"option of decomfl must be one of its own, got {name!r} (did you mean {meant}?)"
    assert str(caught.value) == wanted


def test_an_option_of_its_own_passes_whatever_else_it_means_elsewhere() -> None:
    for name in ("K", "eps", "lr"):
        require_option("mine", name, ["K", "eps", "lr"])


def test_a_word_whose_option_the_owner_does_not_have_is_answered_by_what_it_has() -> None:
    with pytest.raises(InputError, match=r"option of mine must be one of rounds, seed, got 'beta1'$"):
        require_option("mine", "beta1", ["rounds", "seed"])
    with pytest.raises(InputError, match=r"got 'roundz' \(did you mean rounds\?\)"):
        require_option("mine", "roundz", ["rounds", "seed"])
