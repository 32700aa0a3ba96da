"""Mutation testing: `python shared-tests/mutate.py SOURCE TESTS...` changes a module bit by bit and runs its tests.

A mutant that no test notices is printed, and the exit status is their number. Changed are comparisons, `and` and `or`,
`not`, numbers, and conditional expressions, but not the `strict` of a `zip`. A line with ``# mutant: REASON`` is
left alone, since a change there cannot be seen from outside.
"""

import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def change(node: ast.AST) -> bool:
    """Change a node in place, if it is of a kind that can be changed."""
    match node:
        case ast.Compare():
            node.ops[0] = COMPARISONS[type(node.ops[0])]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            node.op = ast.UAdd()  # +bool is its truth
        case ast.IfExp():
            node.body, node.orelse = node.orelse, node.body
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float()):
            node.value += 1
        case _:
            return False
    return True


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the changed expression and the source of every mutant."""
    tree = ast.parse(source)
    lines = source.splitlines()
    guards = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"]
    for number, node in enumerate(ast.walk(tree)):
        if node in guards or "# mutant: " in lines[getattr(node, "lineno", 1) - 1]:
            continue
        changed = copy.deepcopy(tree)
        target = next(other for position, other in enumerate(ast.walk(changed)) if position == number)
        if change(target):
            yield node.lineno, f"{ast.unparse(node)}  ->  {ast.unparse(target)}", ast.unparse(changed)


def is_noticed(folder: Path, tests: list[str]) -> bool:
    """Return whether the tests fail on the package in a folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, env=environment).returncode != 0


def main(module: str, *tests: str) -> int:
    """Return how many mutants of a module survive."""
    path = Path(module).resolve()
    survivors, count = 0, 0
    with tempfile.TemporaryDirectory() as name:
        package = shutil.copytree(path.parent, Path(name) / path.parent.name)
        if is_noticed(package.parent, list(tests)):
            sys.exit(f"{path.name}: the tests fail without a mutation")
        for line, what, source in mutants(path.read_text(encoding="utf-8")):
            (package / path.name).write_text(source, encoding="utf-8")
            count += 1
            if not is_noticed(package.parent, list(tests)):
                survivors += 1
                print(f"{path.name}:{line}: survived: {what}", flush=True)
    print(f"{path.name}: {count - survivors} of {count} mutants noticed", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 100))
