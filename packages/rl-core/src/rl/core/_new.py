"""``rl new plugin``: a project of a plugin, with tests and workflows. Standard library only.

The files are those of the folder ``_plugin_template``, which is also a template of Copier: names and contents are texts
of Jinja with ``[[ variable ]]`` and ``[% if 'part' in parts %]``, and nothing else.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rl.core._discovery import FIRST_PARTY
from rl.core._output import Parser
from rl.core.component import OWN_COMMANDS
from rl.core.errors import ArgumentError, RLError

TEMPLATE = Path(__file__).parent / "_plugin_template" / "files"
PARTS = ("env", "loss", "transform", "sampler", "storage", "logger", "recipe", "backend", "command")
"""Words after ``--with``, in the order of the documentation."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_TAG_LINE = re.compile(r"^[ \t]*(\[% [^%]* %\])\n", re.MULTILINE)
_INNERMOST = re.compile(r"\[% if '(\w+)' (not )?in parts %\]((?:(?!\[% ).)*)\[% endif %\]", re.DOTALL)
_VARIABLE = re.compile(r"\[\[ (\w+) \]\]")


def main(arguments: Sequence[str]) -> int:
    """Run ``rl new plugin ARGUMENTS`` and return the exit status."""
    parser = Parser("rl new plugin", description="Write a project of a plugin: package, tests, workflows, metadata.")
    parser.add_argument("name", metavar="NAME", help="name of the distribution, as in acme-rl; also the new folder")
    parser.add_argument(
        "--with", dest="parts", metavar="PARTS", default="env", help=f"some of {','.join(PARTS)} (default: env)"
    )
    parser.add_argument("--prefix", metavar="WORD", help="before the names of components (default: NAME without rl)")
    parser.add_argument("--author", metavar="NAME", help="author in the metadata (default: NAME contributors)")
    parser.add_argument("--out", metavar="DIR", default=".", help="folder of the new folder (default: this one)")
    options = parser.read(arguments)
    parts = [part.strip() for part in options.parts.split(",")]
    folder = write_plugin(options.out, options.name, parts, prefix=options.prefix, author=options.author)
    sys.stdout.write(f'{folder} has {", ".join(parts)}; next:\n  pip install -e "{folder}[test]"\n  pytest {folder}\n')
    return 0


def write_plugin(
    parent: str | Path, name: str, parts: Sequence[str], *, prefix: str | None = None, author: str | None = None
) -> Path:
    """Write the project of a plugin.

    Args:
        parent: Folder in which the new folder is created.
        name: Name of the distribution, and of the folder.
        parts: Some of `PARTS`.
        prefix: First part of the names of components; `name` without ``rl`` at its ends if None.
        author: Author in the metadata.

    Returns:
        The new folder.

    Raises:
        ArgumentError: If the name or the prefix cannot be one, or there is no such part.
        RLError: If the folder exists.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = write_plugin(parent, "acme-rl", ["env", "sampler"])
        ...     print(*sorted(file.name for file in folder.glob("src/acme_rl/*.py")))
        __about__.py __init__.py chain.py plugin.py stratified.py
    """
    module = _check_names(name, prefix)
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise ArgumentError(f"there is no part {', '.join(map(repr, unknown))}; parts: {','.join(PARTS)}")
    folder = Path(parent) / name
    if folder.exists():
        raise RLError(f"{folder} exists: choose another name, remove it, or choose another folder with --out")
    author = f"{name} contributors" if author is None else author
    if not author.isprintable() or set(author) & {'"', "\\"}:
        raise ArgumentError(f"the author cannot have quotes or backslashes, got {author!r}")
    values = {"name": name, "module": module, "prefix": prefix or default_prefix(name), "author": author}
    for path, text in list(render_all(values, parts)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def default_prefix(name: str) -> str:
    """Return the name of a distribution without ``rl`` at its ends.

    Example:
        >>> default_prefix("acme-rl"), default_prefix("rl-acme-games")
        ('acme', 'acme-games')
    """
    return name.removeprefix("rl-").removesuffix("-rl")


def _check_names(name: str, prefix: str | None) -> str:
    """Return the name of the package that is imported."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ArgumentError(
            f"{name!r} cannot be the name of a distribution; write lower case words joined by hyphens, as in acme-rl"
        )
    if name in FIRST_PARTY or module in sys.stdlib_module_names or module in ("rl", "torch", "tensordict"):
        raise ArgumentError(f"{name!r} is the name of something else; write another one, as in my-{name}")
    prefix = default_prefix(name) if prefix is None else prefix
    if not _NAME.fullmatch(prefix):
        raise ArgumentError(f"the prefix {prefix!r} is no lower case word, as in acme")
    if prefix in OWN_COMMANDS:
        raise ArgumentError(f"`rl {prefix}` is a command of rl-core; write another --prefix")
    return module


def render_all(values: dict[str, str], parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of the project."""
    for file in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        path = render("/".join(file.relative_to(TEMPLATE).parts), values, parts)
        text = file.read_text(encoding="utf-8")
        if path.endswith("/.jinja"):  # the name of a file without its part
            continue
        yield path.removesuffix(".jinja"), render(text, values, parts) if path.endswith(".jinja") else text


def render(text: str, values: dict[str, str], parts: Sequence[str]) -> str:
    r"""Fill in a text, as Jinja does.

    Example:
        >>> render("[% if 'env' in parts %]\nan env\n[% endif %]\nof [[ name ]]", {"name": "acme"}, ["loss"])
        'of acme'
    """
    text = _TAG_LINE.sub(r"\1", text)
    count = 1
    while count:  # from the innermost condition to the outermost
        text, count = _INNERMOST.subn(lambda m: m[3] if (m[1] in parts) != bool(m[2]) else "", text)
    return _VARIABLE.sub(lambda match: values[match[1]], text)
