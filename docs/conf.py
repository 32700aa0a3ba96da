"""The manual's settings; the API reference is generated from each package's `__all__`."""

import importlib
import inspect
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
PACKAGES = sorted(path.name for path in (DOCS.parent / "packages").iterdir())

project = "Ensembles and online learning"
copyright = "the contributors"
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "examples"]
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # numpydoc's sections say it in words, with shapes
autodoc_member_order = "bysource"
nitpick_ignore = [("py:class", "jax.numpy.float32")]
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
# Form and order; that every parameter is described is for the packages' tests, which see true signatures.
numpydoc_validation_checks = {"GL03", "GL05", "GL06", "GL07", "SS01", "SS02", "SS04", "PR03", "PR05", "RT02"}

html_theme = "furo"
html_title = project
html_static_path = ["_static"]


def reference(package: str) -> str:
    """Return a page with a table of a package's public names, and an entry for each."""
    module = importlib.import_module(package.replace("-", "_"))
    lines = [package, "=" * len(package), "", f".. currentmodule:: {module.__name__}", ""]
    names = sorted(set(module.__all__) - {"__version__"}, key=str.lower)
    lines += ["Every name is there since 0.1.0, unless its entry says otherwise.", "", ".. list-table::", ""]
    for name in names:
        lines += [f"   * - :py:obj:`{name}`", f"     - {purpose(getattr(module, name))}"]
    lines.append("")
    for name in names:
        entry = getattr(module, name)
        lines += [name, "-" * len(name), "", f".. {directive(entry)}:: {name}"]
        lines += ["   :members:", ""] if inspect.isclass(entry) else [""]
    return "\n".join(lines)


def purpose(entry: object) -> str:
    """Return what a public object is for: the first sentence of its docstring."""
    documented = inspect.isclass(entry) or inspect.isroutine(entry)
    return (inspect.getdoc(entry) or "").split("\n\n")[0].replace("\n", " ") if documented else "A table; see below."


def directive(entry: object) -> str:
    """Return the autodoc directive for a public object."""
    if inspect.isclass(entry):
        return "autoexception" if issubclass(entry, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(entry) else "autodata"


def write_reference(app: Sphinx) -> None:
    """Write the reference pages that changed, before Sphinx reads its sources."""
    folder = DOCS / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        page, text = folder / f"{package}.rst", reference(package)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def escape_stars(app: Sphinx, what: str, name: str, entry: object, options: object, lines: list[str]) -> None:
    """Keep the star of a shape like ``(*batch, features)`` from opening an emphasis; doctests stay as they are."""
    lines[:] = [re.sub(r"(?<=[(, ])\*(?=\w+[,)])", r"\*", line) if ">>>" not in line else line for line in lines]


def setup(app: Sphinx) -> None:
    """Hook the reference into the build."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-docstring", escape_stars, priority=400)  # before numpydoc, at 500
