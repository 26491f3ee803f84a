"""Sphinx configuration. The docs build without torch and without a network: see make_reference.py."""

from __future__ import annotations

import re
from importlib.metadata import files
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

project = "rl"
author = "the rl maintainers"
copyright = "2026, the rl maintainers"  # noqa: A001  Sphinx wants this name
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = [
    "_build",
    "build.py",
    "conftest.py",
    "algorithms/options",
    "results/results.md",
    "results/offline/results.md",
    "reference/extra",
]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
nitpicky = False

# Signatures: one parameter a line if they are long; a class of ours by its name alone.
maximum_signature_line_length = 72
python_use_unqualified_type_names = True
add_module_names = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = "rl"
html_js_files = [("versions.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_static_path = ["_static", "images/agents"]
html_extra_path = ["reference/extra"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "sidebar_hide_name": True,
    "light_css_variables": {
        "color-brand-primary": "#0b6e5f",
        "color-brand-content": "#0b6e5f",
    },
    "dark_css_variables": {
        "color-brand-primary": "#4fd1b5",
        "color-brand-content": "#4fd1b5",
    },
}


def _mathjax() -> str:
    """The one file of MathJax that formulas need, from a package on disk: readers load nothing from elsewhere."""
    found = files("sphinx-mathjax-offline") or []
    return next(str(one.locate()) for one in found if one.name == "tex-svg.js")


html_static_path.append(_mathjax())
mathjax_path = "tex-svg.js"
mathjax3_config = {"svg": {"displayAlign": "left", "displayIndent": "0"}}


SCRIPT = re.compile(r"(?:packages/)?(rl-[\w-]+/benchmarks/\w+)\.py")


def link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link names of the reference and benchmark scripts that stand in backquotes: `PPOConfig`, `rl.core.load`."""
    domain = app.env.domains["py"]
    known = _names(app)
    for node in list(doctree.findall(nodes.literal)):
        text = node.astext()
        if any(
            isinstance(one, nodes.reference | nodes.title) for one in _parents(node)
        ):
            continue
        if script := SCRIPT.fullmatch(text):
            url = f"{'../' * docname.count('/')}source/packages/{script[1]}.html"
            node.replace_self(
                nodes.reference("", "", node.deepcopy(), refuri=url, internal=True)
            )
            continue
        name = re.sub(r"\(.*\)$", "", text, flags=re.DOTALL)
        if not (name[:1].isupper() or "." in name or text.endswith("()")):
            continue  # a function's name may be any other word
        target = known.get(name)
        if target is None:
            continue
        to = domain.objects[target]  # type: ignore[attr-defined]
        if to.docname != docname:
            node.replace_self(
                make_refnode(
                    app.builder,
                    docname,
                    to.docname,
                    to.node_id,
                    node.deepcopy(),
                    target,
                )
            )


def _parents(node: nodes.Node) -> Any:
    while node.parent is not None:
        node = node.parent
        yield node


def _names(app: Sphinx) -> dict[str, str]:
    """Each name that means one object of the reference: with its package, alone, and `Class.method`."""
    if not hasattr(app, "rl_names"):
        found: dict[str, set[str]] = {}
        for path in app.env.domains["py"].objects:  # type: ignore[attr-defined]
            parts = path.split(".")
            for start in (0, 2, len(parts) - 1):
                found.setdefault(".".join(parts[start:]), set()).add(path)
        app.rl_names = {  # type: ignore[attr-defined]
            name: min(paths, key=len)
            for name, paths in found.items()
            if len(paths) == 1 or name[:1].isupper()
        }
    return app.rl_names  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the links; all of this may run in several processes."""
    app.connect("doctree-resolved", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
