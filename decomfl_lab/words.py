"""The paper's symbols, and other libraries' words, for options, and what they are called here."""

from collections.abc import Iterable

from decomfl_lab.errors import InputError, require_choice
from decomfl_lab.tables import table_beside

WORDS = {word: option for option, words in table_beside(__name__, "words.toml").items() for word in words}
"""The paper's symbols and other libraries' words for options, and what they are called here."""


def require_option(owner: str, name: str, known: Iterable[str]) -> None:
    """InputError for an option that ``owner`` does not have; it names the one that is meant, or is nearest."""
    names = list(known)
    meant = WORDS.get(name.replace("_", "-"), "").replace("-", "_")
    if name not in names and meant in names:
        raise InputError(f"option of {owner} must be one of its own, got {name!r} (did you mean {meant}?)")
    require_choice(f"option of {owner}", name, names)
