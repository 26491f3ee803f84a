"""Sphinx configuration. The docs build without torch and without a network: see make_reference.py."""

project = "rl"
author = "the rl maintainers"
copyright = "2026, the rl maintainers"  # noqa: A001  Sphinx wants this name
extensions = ["myst_parser"]
exclude_patterns = [
    "_build",
    "build.py",
    "conftest.py",
    "results/results.md",
    "results/offline/results.md",
]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "rl"
html_static_path = ["_static"]
html_js_files = [("versions.js", {"defer": "defer"})]
nitpicky = False
