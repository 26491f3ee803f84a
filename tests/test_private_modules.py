"""No distribution imports a private module of another one."""

from __future__ import annotations

import ast

import pytest
from fresh_env import ROOT

SOURCES = sorted((ROOT / "packages").glob("*/src/rl/*/"))
OWN = [path for path in SOURCES if path.name != "plugins"]


def imported(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("rl."):
            found.append(node.value)  # modules of lazy exports
    return found


def is_private(name: str, package: str) -> bool:
    parts = name.split(".")
    return (
        parts[0] == "rl"
        and len(parts) > 2
        and parts[1] != package
        and any(part.startswith("_") and not part.startswith("__") for part in parts[2:])
    )


@pytest.mark.parametrize("package", OWN, ids=lambda path: path.name)
def test_no_package_imports_a_private_module_of_another(package):
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if is_private(name, package.name)
    ]
    assert found == []


def test_a_private_module_of_another_package_is_found():
    names = imported(ast.parse("from rl.core._mdp import x\nimport rl.core.keys\nfrom rl.envs.base._specs import y"))
    assert [is_private(name, "envs") for name in names] == [True, False, False]
