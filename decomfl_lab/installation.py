"""The lab as it is installed: its packages, whose names a user's own may have too, where it came from, its extras."""

import importlib.util
import sys
import warnings
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NoReturn

from decomfl_lab.errors import InputError, LabWarning

ROOT = Path(__file__).resolve().parents[1]
"""The folder that the lab's packages are imported from."""
PACKAGES = ("theory", "hessian", "figures", "paper_repro", "benchmarks")
"""The other packages of the lab."""


def pass_over_the_current_folder() -> None:
    """Have ``python -m decomfl_lab`` import nothing that lies in the current folder, which Python puts first.

    A user's folder may have a package called ``theory`` of its own. What he names himself is found there all the same,
    after all others (``plugins.named``).
    """
    module, *_ = [*sys.orig_argv[sys.orig_argv.index("-m") + 1 :], ""] if "-m" in sys.orig_argv else [""]
    first = Path(sys.path[0]).resolve() if sys.path and not sys.flags.safe_path else ROOT
    if module.split(".")[0] == "decomfl_lab" and first != ROOT:
        del sys.path[0]


def hiding(package: str) -> str | None:
    """The file or folder that is imported as ``package`` in place of the lab's own; None where nothing hides it."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # somebody's module that says nothing of where it is from
        return None
    if spec is None or spec.origin is None or not (ROOT / package).is_dir():
        return None
    origin = Path(spec.origin).resolve()
    place = origin.parent if origin.name == "__init__.py" else origin
    return None if place == ROOT / package else str(place)


def tell_what_is_hidden() -> None:
    """A ``LabWarning`` where a user's own packages hide those of the lab; the processes of a pool stay silent."""
    places = [place for package in PACKAGES if (place := hiding(package))] if parent_process() is None else []
    if places:
        hidden = f"{', '.join(places)} will be imported in place of the lab's packages of the same names"
        warnings.warn(f"{hidden} (rename them to use the lab's; all else works as ever)", LabWarning, stacklevel=3)


def command_for(extra: str) -> str:
    """The command that installs an extra, from where the lab itself was installed."""
    import importlib.metadata  # here, as these are slow
    import json

    try:
        direct_url = importlib.metadata.distribution("decomfl-lab").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        direct_url = None
    source: dict[str, Any] = json.loads(direct_url or "{}")
    if source.get("dir_info", {}).get("editable"):
        return f"pip install -e '{ROOT}[{extra}]'"
    where = f" @ {source['url']}" if source else ""
    return f"pip install 'decomfl-lab[{extra}]{where}'"


def without_extra(wanted_by: str, extra: str, error: ImportError) -> NoReturn:
    """InputError that says which extra is missing, and how it is installed."""
    why = f"no module {error.name}" if isinstance(error, ModuleNotFoundError) else error
    raise InputError(f"{wanted_by} needs the extra {extra}: {command_for(extra)} ({why})") from None
