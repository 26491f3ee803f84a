"""The shape of the repository: one namespace, one folder form, one public name for each thing."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib

import pytest
from fresh_env import ROOT

PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
BY_NAME = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


def short(package):
    return package.name.removeprefix("rl-").replace("-", "_")


@BY_NAME
def test_no_package_owns_the_namespace(package):
    assert not (package / "src" / "rl" / "__init__.py").exists()
    assert not (package / "src" / "rl" / "plugins" / "__init__.py").exists()


@BY_NAME
def test_each_package_is_complete(package):
    for name in ("README.md", "CHANGELOG.md", "LICENSE", f"src/rl/{short(package)}/py.typed"):
        assert (package / name).is_file(), f"{package.name} lacks {name}"
    if short(package) not in ("core", "testing"):  # these declare no components
        assert (package / "src" / "rl" / "plugins" / f"{short(package)}.py").is_file()


@BY_NAME
def test_every_public_name_resolves(package):
    module = importlib.import_module(f"rl.{short(package)}")
    assert set(module.__all__) <= set(dir(module))
    paths = [found.name for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}.")]
    for one in [module, *(importlib.import_module(path) for path in paths if not path.endswith("__main__"))]:
        for name in getattr(one, "__all__", ()):
            assert getattr(one, name) is not None, f"{one.__name__}.{name}"


@BY_NAME
def test_importing_a_package_imports_no_torch(package):
    code = f"import sys, rl.{short(package)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@BY_NAME
def test_only_the_trainers_depend_on_siblings(package):
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    ours = {need.split(">")[0].split("[")[0] for need in project["dependencies"] if need.startswith("rl-")}
    if package.name == "rl-core":
        assert ours == set()
    elif package.name != "rl-trainers":
        assert ours == {"rl-core"}


@BY_NAME
def test_a_sibling_is_required_by_range_never_by_equality(package):
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    for need in project["dependencies"]:
        assert "==" not in need.partition(";")[0], f"{package.name} pins {need}"
        if need.startswith("rl-"):
            assert ">=" in need
            assert "<" in need


@pytest.mark.parametrize("package", [*PACKAGES, ROOT / "template" / "rl-plugin-example"], ids=lambda path: path.name)
def test_the_metadata_has_author_classifiers_and_licence(package):
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": "rl contributors"}]
    assert "Programming Language :: Python :: 3.11" in project["classifiers"]
    assert project["license-files"] == ["LICENSE"]
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def sources(package):
    return sorted((package / "src").rglob("*.py"))


def is_private(path):
    return any(part.startswith("_") and not part.startswith("__") for part in path.parts)


@BY_NAME
def test_a_file_is_a_subject_and_no_fragment(package):
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in sources(package)]
    assert sum(lengths) / len(lengths) >= 180, f"{package.name}: merge files that are read together"


def test_rl_core_does_not_grow():
    """Each package imports it: what a single one needs stands there."""
    assert (
        sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(ROOT / "packages/rl-core")) <= 12_100
    )


@BY_NAME
def test_private_modules_list_no_names(package):
    private = [path for path in sources(package) if is_private(path.relative_to(package))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in private}
    assert [path for path, text in texts.items() if re.search(r"^__all__\b", text, re.MULTILINE)] == []


ENTRY = re.compile(r"    [*\w`][^:]*:\s+([a-z].*)")


def fragments(docstring):
    """Entries of arguments and attributes that begin with a small letter."""
    for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE):
        yield from (match[0].strip() for match in map(ENTRY.fullmatch, section.splitlines()) if match)


def public_docstrings(tree):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (node.name == "__init__" or node.name[0] != "_"):
            yield node, ast.get_docstring(node) or ""
            yield from public_docstrings(node)


@BY_NAME
def test_arguments_are_described_in_whole_phrases(package):
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {entry}"
        for path in sources(package)
        for node, docstring in public_docstrings(ast.parse(path.read_text(encoding="utf-8")))
        for entry in fragments(docstring)
    ]
    assert found == [], f"{len(found)} entries begin with a small letter"


def test_a_fragment_is_found():
    entries = "    size: of it.\n    *more: Others\n        of it: these.\n    mode: `a` or `b`.\n"
    docstring = f"Do it.\n\nArgs:\n{entries}\nReturns:\n    it: x\n"
    assert list(fragments(docstring)) == ["size: of it."]


def private_names(node):
    """What an import takes from a private module below `rl`."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    return [name for name in names if name.startswith("rl.") and re.search(r"\._(?!_)", name)]


def unexplained_imports(text):
    """Private imports with no comment at the line, before it, or before the private imports that it follows."""
    lines = ["", *(re.sub(r"# (noqa|fmt|isort|pyright)\b.*", "", line) for line in text.splitlines())]
    explained = None
    for node in ast.walk(ast.parse(text)):  # the imports of one block follow each other
        if names := private_names(node):
            before, here = lines[node.lineno - 1].strip(), lines[node.lineno : node.end_lineno + 1]
            if before[:1] == "#" or any("#" in line for line in here) or explained == node.lineno - 1:
                explained = node.end_lineno
            else:
                yield node.lineno, names


def test_tests_use_public_names_or_say_why_not():
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "packages").glob("*/tests/**/*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(names)}"
        for path in sorted(paths)
        for line, names in unexplained_imports(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "use a public name, or say in a comment before the import why the private part is tested"


def test_an_unexplained_private_import_is_found():
    private, public = "from rl.a._b import c\n", "from rl.a import b\n"
    assert list(unexplained_imports(f"{public}{private}")) == [(2, ["rl.a._b.c"])]
    assert list(unexplained_imports("import rl.a._b  # noqa: E402\n")) == [(1, ["rl.a._b"])]
    assert list(unexplained_imports(f"# why\n{private}{private}{public}{private}")) == [(5, ["rl.a._b.c"])]
    assert list(unexplained_imports(f"from rl.a import _b  # why\n{public}from rl.a.__about__ import b\n")) == []
