"""The libraries of the extra ``llm``, imported only where a language model is wanted."""

import importlib
import importlib.metadata
import sys
from types import ModuleType

from decomfl_lab.installation import without_extra


def llm_library(name: str, wanted_by: str) -> ModuleType:
    """The module ``name``, one of those that the extra ``llm`` installs; InputError if it is not installed.

    What it is ``wanted_by`` is for the error: "model facebook/opt-125m".
    """
    if name == "transformers":
        pass_over("torchvision")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        without_extra(wanted_by, "llm", error)


def installed(name: str) -> str | None:
    """The version of the library that is installed under this name, without importing it; None where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def pass_over(optional: str) -> None:
    """Let others find no module of this name if it is there and cannot be loaded, as a torchvision of another torch.

    transformers asks only whether torchvision is there, and then fails even where it has no use for it. The extra
    ``peers`` brings one to users who have a CPU build of torch (`make setup` takes it away again).
    """
    try:
        importlib.import_module(optional)
    except (ImportError, OSError, RuntimeError):
        for loaded in [name for name in sys.modules if name.split(".")[0] == optional]:
            del sys.modules[loaded]
        sys.modules[optional] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
