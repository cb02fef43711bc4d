"""Mutation testing of the core: small changes of its source, each of which the laws or a quick test must notice.

    python -m tests.mutants --sample 150 --seed 0

Every mutant lives in a forked process that imports it instead of the module; nothing is written to the source.

Of 200 mutants (seed 0) 177 are noticed. Of the 23 others 8 change what a user sees; the rest change time, memory or
looks, or have no right value. Tests were written for the survivors of this sample: it is no estimate for others.
"""

import argparse
import ast
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.cases import rows_of

ROOT = Path(__file__).parents[1]
SECONDS = 600
"""A mutant that takes longer counts as noticed: it does not end."""
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift,
}  # fmt: skip


class Suite(NamedTuple):
    """Who looks at a mutant: the laws first or not, the tests, and folders of source that they are for."""

    laws: bool
    tests: list[str]
    sources: list[str]


SUITES = {name: Suite(**own) for name, own in rows_of(__file__).items()}
"""By name; what a slow test alone would notice counts as a survivor (``SLOW``)."""
SLOW = "16_bit_replicas or every_variant or drift_by_roundings or average_of_copies or clients_hold_a_model_for_each"
SLOW += " or 95_percent or has_its_rows or two_processes or the_host_waits or losses_are_the_models_own"
LEFT_OUT = ("__init__", "_template", "ray", "nvflare")
"""Modules without code, and those whose tests need an engine that is not installed (``make engines``)."""


def _files() -> dict[str, str]:
    """The suite of each source file, by its path."""
    found = {}
    for name, suite in SUITES.items():
        for source in suite.sources:
            at = ROOT / source
            paths = [at] if at.is_file() else sorted(at.rglob("*.py"))
            found |= {str(path.relative_to(ROOT)): name for path in paths if path.stem not in LEFT_OUT}
    return found


FILES = _files()


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, but for types and for what only errors say."""
    yield node
    for name, value in ast.iter_fields(node):
        below = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
        if isinstance(node, ast.Call) and name == "args" and getattr(node.func, "id", "") == "require":
            below = below[:1]
        for child in below if name not in ("annotation", "returns", "decorator_list", "bases") else ():
            if not isinstance(child, ast.JoinedStr | ast.Raise) and getattr(child, "arg", "") != "strict":
                yield from _inside(child)


def _removable(statement: ast.stmt) -> bool:
    """Whether the statement can be left out: a call, an assignment to a part of something, a raise."""
    match statement:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue():
            return not ast.unparse(statement).startswith("logger")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            return True
    return False


def _changes(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """The changes of a node: an attribute's name, its new value, and the node to show."""
    match node:
        case ast.Compare() if type(node.ops[0]) in SWAPS:
            yield "ops", [SWAPS[type(node.ops[0])](), *node.ops[1:]], node
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in SWAPS:
            yield "op", SWAPS[type(node.op)](), node
        case ast.Constant(value=bool(value)):
            yield "value", not value, node
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield "value", value + 1, node
        case ast.If() | ast.IfExp() | ast.While():
            yield "test", ast.UnaryOp(ast.Not(), node.test), node
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        for n, statement in enumerate(block if isinstance(block, list) else []):
            if _removable(statement):
                yield name, [*block[:n], ast.Pass(), *block[n + 1 :]], statement


def mutations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Change the tree in one place after another: line and words; each change is undone when the next is asked for."""
    for node in list(_inside(tree)):
        for name, new, shown in list(_changes(node)):
            old, before = getattr(node, name), ast.unparse(shown).splitlines()[0]
            setattr(node, name, new)
            after = ast.unparse(shown).splitlines()[0] if shown is node else "pass"
            yield shown.lineno, f"{before}  →  {after}"
            setattr(node, name, old)


class _Instead(importlib.machinery.SourceFileLoader):
    """Imports a module from a changed tree."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        super().__init__(path.removesuffix(".py").replace("/", "."), str(ROOT / path))
        self.code = compile(ast.fix_missing_locations(tree), path, "exec")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        mine = fullname == self.name
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self) if mine else None

    def get_code(self, fullname: str) -> Any:
        return self.code


class _First:
    """A plugin of pytest that knows the first test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _noticed(path: str, tree: ast.Module | None, cases: int) -> str:
    """In a child: which law or test notices the changed module; empty for none."""
    import pytest

    if tree is not None:
        sys.meta_path.insert(0, _Instead(path, tree))  # type: ignore[arg-type]
    suite, first = SUITES[FILES[path]], _First()
    if suite.laws:
        from decomfl_lab.laws.check import LAWS, Implementation, check_law

        for law in LAWS.values():
            streams = {"backends", "direction"} & set(law.parts)
            if not streams and not check_law(law, Implementation(), cases=cases, shrink=False).passed:
                return f"law {law.name}"
    early = "ignore::hypothesis.errors.HypothesisSideeffectWarning"  # the laws have imported it before pytest does
    options = ["-x", "-q", "-n0", "--assert=plain", "-p", "no:cacheprovider", "-W", early]
    options += ["-m", "not thorough", "-k", f"not ({SLOW})"]
    nearest = [str(found.relative_to(ROOT)) for found in ROOT.glob(f"tests/**/test_{Path(path).stem}.py")]
    if nearest and pytest.main([*options, *nearest], [first]) == 1:  # its own tests first: they are those that see most
        return f"test {first.name}"
    if pytest.main([*options, *suite.tests], [first]):
        return f"test {first.name or 'that cannot be collected'}"
    if suite.laws:  # few cases meet few rules: a last look by the law that has a line for each
        law = LAWS["replay-equals-the-written-out-recursion"]
        if not check_law(law, Implementation(), cases=150, shrink=False).passed:
            return f"law {law.name}"
    return ""


def outcome_of(path: str, tree: ast.Module | None, cases: int) -> str:
    """What became of a mutant in a process of its own: SURVIVED, or who noticed it."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        said = "import"  # the change breaks the import
        try:
            said = _noticed(path, tree, cases) or "SURVIVED"
        finally:
            os.write(writes, said.encode())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said or "endless"


def main(argv: Sequence[str] | None = None) -> int:
    """Try a sample of all mutants; 1 if fewer than 90 % are noticed."""
    for slow in ("hypothesis", "numba", "pandas", "scipy.stats", "torch"):  # once for all children
        importlib.import_module(slow)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=150, help="How many mutants are tried.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the draw.")
    parser.add_argument("--cases", type=int, default=8, help="Random cases a law.")
    parser.add_argument("--only", default="", help="A text that file:line and the change must contain.")
    parser.add_argument("--part", default="1/1", help="Which of how many equal parts of the sample is tried, as 2/3.")
    given = parser.parse_args(argv)
    trees = {path: ast.parse((ROOT / path).read_text()) for path in FILES}
    every = [
        (path, n, f"{path}:{line} {words}")
        for path, tree in trees.items()
        for n, (line, words) in enumerate(mutations(tree))
    ]
    some = [at for at in every if given.only in at[2]]
    sample = random.Random(given.seed).sample(some, min(given.sample, len(some)))
    part, of = map(int, given.part.split("/"))
    chosen = set(sample[part - 1 :: of])
    print(f"{len(every)} mutants, {len(chosen)} tried (seed {given.seed}, {given.cases} cases a law)", flush=True)
    found: Counter[str] = Counter()
    passes: set[str] = set()
    for path, tree in trees.items():
        mine = {n: words for at, n, words in chosen if at == path}
        suite = FILES[path]
        if mine and suite not in passes:
            passes.add(suite)
            if outcome_of(path, None, given.cases) != "SURVIVED":
                raise SystemExit(f"the unchanged {path} does not pass its tests")
        for n, _ in enumerate(mutations(tree)):
            if n in mine:
                started = time.monotonic()
                outcome = outcome_of(path, tree, given.cases)
                kind, _, who = outcome.partition(" ")
                found[kind] += 1
                print(f"{kind:8s} {time.monotonic() - started:4.0f} s  {mine[n]}  {who}", flush=True)
    noticed = found.total() - found["SURVIVED"]
    print(f"{noticed} of {found.total()} noticed: {dict(found)}")
    return int(noticed < 0.9 * found.total())


if __name__ == "__main__":
    raise SystemExit(main())
