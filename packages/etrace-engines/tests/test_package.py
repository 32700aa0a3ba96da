"""The package's form: one public table, layers that import only downwards, short modules."""

import ast
from pathlib import Path

import pytest

import etrace_engines

ROOT = Path(etrace_engines.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
LAYERS = ["_ops", "_graph", "_jacobian", "_trace", "_engine", "_learner", "_sequence"]
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def layer_of(path):
    """Return the number of a module's layer; None at the top of the package."""
    parts = path.relative_to(ROOT).parts
    return LAYERS.index(parts[0]) if parts[0] in LAYERS else None


def imported_layers(source, package):
    """Return the layers that a module of a sub-package imports when it is loaded, by relative imports."""
    found = set()
    for node in _loaded(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (package,)[: 2 - node.level] if node.level < 2 else ()
            target = (*base, *(node.module or "").split("."))
            found |= {target[0]} & set(LAYERS)
    return found


def _loaded(tree):
    """Yield the statements that run at import; those for type checkers, and in functions, do not."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node


@every_module
def test_layers_import_only_downwards(path):
    layer = layer_of(path)
    if layer is None:
        return

    upwards = {name for name in imported_layers(path.read_text(), LAYERS[layer]) if LAYERS.index(name) > layer}

    assert upwards == set()


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ("from .._learner.step import Rule", {"_learner"}),
        ("from .lift import lift", {"_graph"}),
        ("if TYPE_CHECKING:\n    from .._learner.learner import ETraceLearner", set()),
        ("import jax\nfrom .._compat import bind", set()),
    ],
)
def test_layer_check_sees_relative_imports(source, layers):
    assert imported_layers(source, "_graph") == layers


@every_module
def test_modules_stay_below_400_lines(path):
    assert len(path.read_text().splitlines()) < 400


def test_public_names_exist_once():
    names = etrace_engines.__all__

    assert len(set(names)) == len(names)
    assert all(hasattr(etrace_engines, name) for name in names)


def test_version_is_a_release_number():
    assert [part.isdigit() for part in etrace_engines.__version__.split(".")] == [True, True, True]
