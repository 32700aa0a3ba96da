"""What a monorepo of independently installable packages promises: versions, ranges, licences, imports, docstrings."""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest
from numpydoc.docscrape import ClassDoc
from numpydoc.validate import validate

ROOT = Path(__file__).parents[1]
PACKAGES = {path.parent.name: tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")}
MODULES = sorted(ROOT.glob("packages/*/src/**/*.py"))
every_package = pytest.mark.parametrize("package", sorted(PACKAGES))
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-3:]))

# Sections that plain functions and small classes do not need, and matters of taste that the house style settles.
IGNORED = {"EX01", "SA01", "ES01", "GL01", "GL02", "GL03", "SS05", "SS06", "PR04", "PR08", "PR09"}
IGNORED |= {"RT03", "RT05", "YD01"}
OPTIONAL = {"matplotlib", "optax", "tqdm"}  # imported inside the function that needs them, with an error that says so


def import_name(package):
    """Return the name by which a package is imported."""
    return package.replace("-", "_")


def requirements(package):
    """Return the declared requirements, as name -> version range."""
    found = {}
    for line in PACKAGES[package]["project"].get("dependencies", []):
        name, versions = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[.*\])?\s*(.*)", line).groups()
        found[name.lower()] = versions
    return found


def optional_requirements(package):
    """Return the names that the package's extras require."""
    extras = PACKAGES[package]["project"].get("optional-dependencies", {}).values()
    return {re.match(r"[A-Za-z0-9_.-]+", line).group().lower() for lines in extras for line in lines}


def imports(source):
    """Return the top-level modules that a source imports absolutely, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    return found


def imports_of(package):
    """Return the top-level modules that a package's sources import."""
    sources = [path.read_text() for path in (ROOT / "packages" / package / "src").rglob("*.py")]
    return set[str]().union(*map(imports, sources))


def test_all_four_packages_are_found():
    assert sorted(PACKAGES) == ["batched-optim", "dni-synth", "etrace-config", "etrace-engines"]


def test_versions_are_equal():
    versions = {package: importlib.import_module(import_name(package)).__version__ for package in PACKAGES}

    assert len(set(versions.values())) == 1, versions


@every_package
def test_licence_is_the_repositorys(package):
    assert (ROOT / "packages" / package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@every_package
def test_siblings_are_required_by_a_range_that_this_version_is_in(package):
    numbers = lambda version: [int(part) for part in version.split(".")]
    version = numbers(str(importlib.import_module(import_name(package)).__version__))

    for sibling in requirements(package).keys() & PACKAGES.keys():
        floor, cap = re.fullmatch(r">=([\d.]+),\s*<([\d.]+)", requirements(package)[sibling]).groups()
        assert numbers(floor) <= version < numbers(cap)


@every_package
def test_third_parties_have_a_floor(package):
    third = {name: versions for name, versions in requirements(package).items() if name not in PACKAGES}

    assert all(">=" in versions for versions in third.values()), third


@every_package
def test_every_import_is_declared(package):
    third = imports_of(package) - set(sys.stdlib_module_names) - {import_name(package)}

    declared = {import_name(name) for name in requirements(package).keys() | optional_requirements(package)}
    assert third - declared <= OPTIONAL
    assert bool(third) == bool(requirements(package))


def test_import_check_sees_imports_inside_functions():
    assert imports("def f():\n    import jax.numpy as jnp\n    from . import x\n    from torch import nn") == {
        "jax",
        "torch",
    }


@every_package
def test_package_uses_one_framework(package):
    assert not {"jax", "torch"} <= imports_of(package)


@every_module
def test_modules_stay_below_400_lines(path):
    assert len(path.read_text().splitlines()) < 400


def public_names():
    """Return the dotted names of all public functions and classes."""
    found = []
    for package in sorted(PACKAGES):
        module = importlib.import_module(import_name(package))
        items = {name: getattr(module, name) for name in module.__all__}
        found += [
            f"{module.__name__}.{name}"
            for name, item in items.items()
            if inspect.isroutine(item) or isinstance(item, type)
        ]
    return found


def undocumented(item):
    """Return the constructor's parameters that a class describes neither as parameters nor as attributes."""
    doc = ClassDoc(item)
    described = {name for entry in (*doc["Parameters"], *doc["Attributes"]) for name in re.split(r",\s*", entry.name)}
    parameters = [p for p in inspect.signature(item.__init__).parameters.values() if p.name != "self"]
    return {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)} - described


@pytest.mark.parametrize("name", public_names())
def test_public_docstrings_follow_numpydoc(name):
    module, _, attribute = name.partition(".")
    item = getattr(importlib.import_module(module), attribute)
    # Classes are checked by their constructor: a metaclass may hide it, and dataclasses describe their attributes.
    ignored = IGNORED | ({"PR01", "PR02"} if isinstance(item, type) else set())

    assert [f"{code}: {text}" for code, text in validate(name)["errors"] if code not in ignored] == []
    if isinstance(item, type) and not getattr(item, "_is_protocol", False):
        assert undocumented(item) == set()


def test_docstring_check_finds_an_undocumented_argument():
    class Documented:
        """Hold a number."""

        def __init__(self, number):
            self.number = number

    assert undocumented(Documented) == {"number"}


def test_numpydoc_check_finds_an_undocumented_parameter():
    assert "PR01" in {code for code, _ in validate("harness.devices.tolerance")["errors"]}


@every_package
def test_public_table_is_all_that_init_holds(package):
    tree = ast.parse((ROOT / f"packages/{package}/src/{import_name(package)}/__init__.py").read_text())

    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    assert all(isinstance(node, allowed) for node in tree.body)
