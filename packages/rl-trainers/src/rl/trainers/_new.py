"""``rl new recipe``: a page of an algorithm in the folder of the user. Imports no torch."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

from rl.core.errors import ArgumentError, RLError
from rl.trainers.algorithm import Algorithm


def write_page(file: str | Path, like: Algorithm) -> Path:
    """Write a page that begins as another algorithm: its settings, its functions and its `Algorithm`, under a new name.

    The name is that of the file, with ``-`` in place of ``_``. What the page of `like` has for other algorithms is left
    out; bases of its settings in other modules are imported.

    Args:
        file: A new file, whose name is that of a module, such as ``my_td3.py``.
        like: An algorithm whose page is a file.

    Returns:
        The path of the file.

    Raises:
        ArgumentError: If the file has no name of a module.
        RLError: If the file exists, or the page of `like` is no file.

    Example:
        >>> import tempfile
        >>> from rl.trainers.algorithms.td3 import TD3
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(write_page(f"{folder}/my_td3.py", TD3).read_text().splitlines()[0])
        \"\"\"my-td3: begins as td3.\"\"\"
    """
    path = Path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ArgumentError(f"{path} is no name of a module: write a name such as my_{like.name.replace('-', '_')}.py")
    if path.exists():
        raise RLError(f"{path} exists: choose another name, or remove it")
    spec = find_spec(like.config.__module__)
    if spec is None or spec.origin is None:
        raise RLError(f"the page of {like.name} is no file: choose another algorithm with --like")
    text = Path(spec.origin).read_text(encoding="utf-8")
    path.write_text(_page(text, like, path.stem.replace("_", "-")), encoding="utf-8")
    return path


def _page(text: str, like: Algorithm, name: str) -> str:
    """Return the part of a page that an algorithm needs, with another name."""
    tree = ast.parse(text)
    defined = {one: node for node in tree.body for one in _names_of(node)}
    (object_name,) = (one for one, node in defined.items() if _is_algorithm(node, like.config.__name__))
    needed, waiting = set[str](), [object_name]
    while waiting:
        one = waiting.pop()
        if one not in needed:
            needed.add(one)
            waiting += [word.id for word in ast.walk(defined[one]) if isinstance(word, ast.Name) and word.id in defined]
    body = "\n\n\n".join(_source(text, node) for node in tree.body if needed & _names_of(node))
    read = {one.id for one in ast.walk(ast.parse(body)) if isinstance(one, ast.Name)}
    nodes = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    imports = [line for node in nodes if (line := _needed_import(node, read))]
    body = re.sub(rf'(recipe: ClassVar\[str\] = )"{re.escape(like.name)}"', rf'\1"{name}"', body)
    return f'"""{name}: begins as {like.name}."""\n\n' + _group_imports(imports) + f"\n\n\n{body}\n"


def _names_of(node: ast.stmt) -> set[str]:
    """Return what a statement defines, but for shortcuts such as ``train_td3 = TD3.train``."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        shortcut = isinstance(node.value, ast.Attribute) and node.value.attr == "train"
        return set() if shortcut else {node.targets[0].id}
    return set()


def _is_algorithm(node: ast.stmt, config: str) -> bool:
    match node:
        case ast.Assign(value=ast.Call(func=ast.Name(id=Algorithm.__name__), args=[ast.Name(id=name), *_])):
            return name == config
        case _:
            return False


def _source(text: str, node: ast.stmt) -> str:
    """Return the lines of a statement, with decorators and the comments above."""
    lines = text.splitlines()
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
    while lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])


def _needed_import(node: ast.Import | ast.ImportFrom, read: set[str]) -> str:
    """Return an import with the names that are read; an empty string without any."""
    if not isinstance(node, ast.ImportFrom) or node.module != "__future__":
        node.names = [one for one in node.names if (one.asname or one.name) in read]
    return ast.unparse(node) if node.names else ""


def _group_imports(imports: list[str]) -> str:
    """Group imports as a formatter does: the future, the standard library, the others."""
    future = [one for one in imports if one.startswith("from __future__")]
    ours = [one for one in imports if one.startswith(("from rl", "import rl"))]
    rest = [one for one in imports if one not in future and one not in ours]
    return "\n\n".join("\n".join(group) for group in (future, rest, ours) if group)
