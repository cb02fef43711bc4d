"""A user's own models, data, losses, bounds and implementations, named as ``module:function`` on the command line.

What a user writes himself is his own. What a file or a peer names is imported only if he trusts it
(``require_trusted``): whoever makes a name of code run here can do all that the user can.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import THEIRS, InputError, require, shown
from decomfl_lab.installation import PACKAGES, hiding
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from torch import Tensor

OWN = "own"
"""What a run's configuration calls a model and data that its user handed over in Python."""
_SPREAD = r"Using a target size \(torch\.Size\(\[(.+?)(, 1)?\]\)\) that .* input size \(torch\.Size\(\[\1(, 1)?\]\)\)"
"""What torch warns of where a loss by its name takes differences of (N, 1) and (N,), which are (N, N)."""
T = TypeVar("T")

Trust = bool | Collection[str]
"""Whether code may be imported because a file or a peer names it: all of it, none, or these names alone."""

_LOSSES = table_beside(__name__, "losses.toml")
TORCH_LOSSES = frozenset(f"{module}:{name}" for module, names in _LOSSES.items() for name in names)
"""The losses that any file may name: these whole names, as a module of torch leads on to all that it has imported."""


def is_own(target: str) -> bool:
    """Whether ``target`` has the form ``module:function`` or ``file.py:function``."""
    module, _, name = target.rpartition(":")
    parts = name.split(".") if module.endswith(".py") else (*module.split("."), *name.split("."))
    return all(part.isidentifier() for part in parts)


def is_named(value: object) -> bool:
    """Whether a value stands for code of the user's: by the name that it has, or that it had in Python."""
    return isinstance(value, str) and (is_own(value) or value.startswith(f"{OWN} "))


def name_of(function: Any) -> str:
    """The module:function by which a function can be imported again, else "own ..."."""
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    known = is_own(name) and not name.startswith("__main__")
    return name if known else f"{OWN} {getattr(function, '__qualname__', type(function).__name__)}"


def targets_of(metrics: str) -> dict[str, str]:
    """{name: target} of "f1=module:function,auc=module:other"."""
    pieces = [piece.partition("=") for piece in metrics.split(",") if piece]
    return {name: target for name, _, target in pieces}


def code_in(values: Mapping[str, Any]) -> dict[str, str]:
    """{key: name} of the code that these values name, but for torch's own losses; nothing is imported."""
    code = {key: value for key, value in values.items() if isinstance(value, str) and is_own(value)}
    metrics = values.get("metrics")
    if isinstance(metrics, str) and any(map(is_own, targets_of(metrics).values())):
        code["metrics"] = metrics
    return {key: name for key, name in code.items() if not (key == "loss" and name in TORCH_LOSSES)}


def require_trusted(values: Mapping[str, Any], origin: str, trust: Trust, unused: Collection[str] = ()) -> None:
    """InputError that lists all code which values of a file or a peer name, where the user does not trust it.

    Args:
        values: {key: value}.
        origin: Where they come from, for the message.
        trust: What the user trusts: all, nothing, or the names that he wrote himself.
        unused: Keys of which nothing is imported, as objects are given in their place or none is needed.
    """
    if trust is True:
        return
    trusted = trust or ()
    foreign = {key: name for key, name in code_in(values).items() if key not in unused and name not in trusted}
    if not foreign:
        return
    keys = {shown(key)[1:-1]: shown(name) for key, name in foreign.items()}
    named_ = ", ".join(f"{key} = {name}" for key, name in keys.items())
    # A method is no object that could be given beside the file.
    objects = f", or give {', '.join(keys)} yourself: in Python, or by a flag if this command has one"
    raise InputError(
        f"{origin} must name no code, as it would be run here, got {named_}: read that code and say --trust-code (in "
        f"Python trust_code=True){objects * ('method' not in foreign)}"
    )


def named(argument: str, target: str) -> Any:
    """The object that ``module:name`` or ``file.py:name`` names; modules in the current folder are found.

    Args:
        argument: What the target was given as, for error messages.
        target: A module's dotted name or the path of a file, a colon, and a name in it, which may have dots too.

    Raises:
        InputError: If the target has another form, the module cannot be imported, or the name is not in it.
    """
    require(is_own(target), argument, "be module:function", target)
    module, _, name = target.rpartition(":")
    # What any file may name is torch's, and no reason to import what lies in the current folder from then on.
    if target not in TORCH_LOSSES and not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # last: what lies there is in no library's place
    try:
        part: Any
        if module.endswith(".py"):
            path = Path(module)
            spec = spec_from_file_location(f"{path.stem} of {path.resolve()}", path)  # a name that hides no other
            assert spec is not None
            assert spec.loader is not None
            part = sys.modules[spec.name] = module_from_spec(spec)
            spec.loader.exec_module(part)
        else:
            part = importlib.import_module(module)
        for attribute in name.split("."):
            part = getattr(part, attribute)
    except THEIRS as error:  # whatever a user's module does
        raise _refusal(argument, "be module:function that can be imported", target, error) from error
    return part


def made(argument: str, target: str, *kinds: type[T]) -> T:
    """What ``module:function`` returns when it is called without arguments, or is, where it is of that kind already.

    It has to be of one of the ``kinds``, ``object`` for any; InputError, with ``argument`` for its name, where it is
    not, or cannot be imported or called.
    """
    result = named(argument, target)
    if callable(result) and (object in kinds or not isinstance(result, kinds)):
        try:
            result = result()
        except THEIRS as error:  # whatever a user's function does
            inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            takes_some = isinstance(error, TypeError) and not inside  # the call itself failed
            rule = "be a function without arguments" if takes_some else "run without an error"
            raise _refusal(argument, rule, target, error) from error
    if not isinstance(result, kinds):
        what = " or ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        raise InputError(f"{argument} {target!r} must make a {what}, got {type(result).__name__}")
    return result


class OwnFunction(str):
    """A function of the user's own in the place of an option's value, and the text of its name, as files have it.

    The name is module:function, file.py:name, or "own NAME" where it was handed over in Python. The function is
    imported when it is first called: what files say of a run can be read, compared and replayed without it.
    """

    option: str  # the option
    form: str  # what it is a function of, as (round, lr)
    given: Any  # the function, where it was handed over

    def __new__(cls, name: str, option: str, form: str, given: Any = None) -> Self:
        """See the class."""
        text = super().__new__(cls, name)
        text.option, text.form, text.given = option, form, given
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnFunction, (str(self), self.option, self.form, self.given)

    @classmethod
    def of(cls, value: Any, option: str, form: str) -> Any:
        """The function that the value is, or names; any other value as it is."""
        if is_named(value):
            return value if isinstance(value, OwnFunction) else cls(value, option, form)
        return cls(name_of(value), option, form, value) if callable(value) and not isinstance(value, type) else value

    @cached_property
    def function(self) -> Any:
        """The function; InputError if it cannot be imported, or was handed over in Python and is not given again."""
        if self.given is not None:
            return self.given
        require(not self.startswith(f"{OWN} "), self.option, "be given again, as the run had it from Python", self)
        function = named(self.option, self)
        function = made(self.option, self, object) if isinstance(function, type) else function
        require(callable(function), f"{self.option} {self!r}", f"be a function of {self.form}", type(function).__name__)
        return function

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns; InputError if it fails, or returns something else when it is asked again."""
        try:
            result, again = self.function(*arguments), self.function(*arguments)
            same = np.asarray(result).tobytes() == np.asarray(again).tobytes()
        except THEIRS as error:  # whatever a user's function does
            raise _refusal(self.option, f"run as a function of {self.form}", self, error) from error
        rule = "be the same when it is asked again (keep nothing between calls, draw nothing of its own)"
        require(same, f"{self.option} {self}", rule, (result, again))
        return result

    def array(self, shape: tuple[int, ...], kind: type[np.number[Any]], *of: NDArray[Any]) -> NDArray[Any]:
        """The numbers (K, P) that it makes of arrays, which it cannot write to; InputError if they are none."""
        for each in of:
            each.flags.writeable = False
        found = np.array(self(*of))
        sound = found.shape == shape and np.issubdtype(found.dtype, kind) and bool(np.isfinite(found).all())
        rule = f"return {kind.__name__} numbers of shape (K, P) = {shape}, all finite"
        require(sound, f"{self.option} {self}", rule, f"{found.dtype} of shape {found.shape}: {found}")
        return found


@contextmanager
def taking(name: str, tensors: Iterable[Tensor]) -> Iterator[None]:
    """InputError where a user's model or loss, called inside, fails on the examples called ``name``, ``tensors``."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _SPREAD)
            yield
    except InputError:
        raise
    except THEIRS as error:  # whatever a user's model does
        kinds = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in tensors)
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if "does not require grad" in told:
            told = f"what is differentiated inside needs a gradient of its own (x.requires_grad_()); {told}"
        if isinstance(error, UserWarning):
            told = f"targets.reshape(-1, 1) mends it, or squeeze(-1) of the outputs, as (N, 1) - (N,) is (N, N); {told}"
        raise InputError(f"model and loss must take the examples of {name} ({kinds}), got {told[:200]}") from error


def _refusal(argument: str, rule: str, target: str, error: BaseException) -> InputError:
    """What to say of an error in one line: an InputError by its own words, others beside the rule that they break.

    The place is the last line that ran in the user's file, or where the error arose if none did.
    """
    frames = traceback.extract_tb(error.__traceback__)
    module = target.rpartition(":")[0]
    own = Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]
    last = ([frame for frame in frames if Path(frame.filename).stem == own] or frames)[-1]
    here = last.filename == __file__ or last.filename.startswith("<")
    place = "" if here else f", {Path(last.filename).name} line {last.lineno}"
    told = " ".join(str(error).split())
    told += "; copy what it is given before it is changed" * ("read-only" in told)
    if isinstance(error, InputError):
        return InputError(f"{told} ({argument} {target!r}{place})")
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType | type):
        near = difflib.get_close_matches(error.name or "", dir(error.obj), 1)
        told += f"; did you mean {near[0]}?" if near else ""
        hidden, there = Path(f"{module}.py").resolve(), getattr(error.obj, "__file__", None)
        if hidden.exists() and there is not None and not hidden.samefile(there):
            told += f"; {there} hides {module}.py, which can be given as {hidden.name}:{target.rpartition(':')[2]}"
    # The user's own file may mean a package of his that is called as one of the lab's.
    obj = getattr(error, "obj", None)
    lacks = obj.__name__ if isinstance(obj, ModuleType) else getattr(error, "name", None)
    package = (lacks or "").split(".")[0]
    if package in PACKAGES and hiding(package) is None:
        theirs = next(filter(Path.exists, (Path(package, "__init__.py"), Path(f"{package}.py"))), None)
        if theirs is not None:
            told += f"; {package} is the lab's package here, not {theirs.resolve()}: rename yours"
    if isinstance(error, ModuleNotFoundError) and module.split(".")[0] == error.name:
        told += f", in {os.getcwd()} or installed"
    return InputError(f"{argument} must {rule}, got {target!r} ({type(error).__name__}: {told}{place})")
