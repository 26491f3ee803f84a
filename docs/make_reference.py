"""Write the reference from the sources, read with griffe, and a page of plugins from metadata.

A package has a page with tables of what stands in its `__all__`, a page for each class, and one for its functions and
values. Signatures have types, and each entry a link to its source, which is written beside as plain HTML.
Of plugins the declaration is imported, which imports neither torch nor the package.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "reference" / "api"
SOURCES = ROOT / "docs" / "reference" / "extra" / "source"  # html_extra_path of conf.py
EXTRA_MODULES = {
    "rl.core": [
        "rl.core.backends",
        "rl.core.component",
        "rl.core.env_specs",
        "rl.core.interfaces",
        "rl.core.hookspecs",
        "rl.core.keys",
        "rl.core.mdp",
        "rl.core.policy_program",
        "rl.core.tensor_functions",
        "rl.core.arguments",
        "rl.core.settings",
        "rl.core.state",
        "rl.core.targets",
    ],
    "rl.llm": ["rl.llm.functional"],
    "rl.objectives": ["rl.objectives.value", "rl.objectives.value.functional"],
}
SMALL = 14  # names of a package that one table shows without headings

Entry = tuple[str, str, Any]
"""Name, documented path, and griffe's object; None where that is of a third-party package."""


class Package:
    """What a distribution documents."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.root = f"rl.{folder.name.removeprefix('rl-').replace('-', '_')}"
        self.module = load(self.root, folder)
        self.entries = list(exported(self.module))
        self.extra: dict[str, tuple[Any, list[Entry]]] = {}
        for name in EXTRA_MODULES.get(self.root, []):
            found = self.module[name.removeprefix(self.root + ".")]
            found = found.final_target if found.is_alias else found
            self.extra[name] = (found, list(exported(found, name)))

    def classes(self) -> list[Entry]:
        """The classes, which have pages of their own."""
        return [one for one in self.entries if one[2] is not None and one[2].is_class]

    def others(self) -> list[Entry]:
        """Functions and values, which share a page."""
        return [one for one in self.entries if one[2] is None or not one[2].is_class]

    def documented(self, entry: Entry) -> str:
        """The path of an entry of a module, which may be that of the same object at the root."""
        _, path, target = entry
        own = (p for _, p, one in self.entries if one is not None and one is target)
        return path if target is None else next(own, path)

    def paths(self) -> Iterator[tuple[str, str]]:
        """Each path under which an object may be imported, with the documented one."""
        extra = [one for _, entries in self.extra.values() for one in entries]
        for one in [*extra, *self.entries]:
            _, path, target = one
            yield path, self.documented(one)
            if target is not None:
                yield target.path, self.documented(one)


def load(name: str, package: Path) -> griffe.Module:
    """A module with its re-exports resolved."""
    loader = griffe.GriffeLoader(
        search_paths=[package / "src"],
        allow_inspection=False,
        docstring_parser="google",
    )
    module = loader.load(name)
    loader.resolve_aliases(implicit=True, external=False)
    assert isinstance(module, griffe.Module)
    return module


def exported(module: Any, prefix: str | None = None) -> Iterator[Entry]:
    """What a module exports, sorted by name; without modules, which have no entry."""
    prefix = prefix or module.path
    for name in sorted(map(str, module.exports or ())):
        member = module.members.get(name)
        if member is None or name == "__version__":
            continue
        try:
            target = member.final_target if member.is_alias else member
        except griffe.AliasResolutionError:
            target = None
        if target is None or not target.is_module:
            yield name, f"{prefix}.{name}", target


def formulas() -> dict[str, list[str]]:
    """The formula of each loss, from the first page of an algorithm that has it, and those of the estimators."""
    docs = ROOT / "docs"
    math = re.compile(r"^```\{math\}\n.*?^```$", re.DOTALL | re.MULTILINE)
    rows = re.findall(
        r"^\| \[([^]]+)\]\(([\w-]+)\.md\) \|(.*)",
        (docs / "algorithms" / "index.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    found: dict[str, list[str]] = {}
    for title, page, rest in rows:
        text = (docs / "algorithms" / f"{page}.md").read_text(encoding="utf-8")
        parts = [part for part in text.split("\n## ") if math.search(part)]
        for name in re.findall(r"`(\w+Loss)`", rest):
            part = next((one for one in parts[1:] if f"`{name}`" in one), parts[0])
            link = f"As on the page of [{title}](../../../algorithms/{page}.md):"
            found.setdefault(name, [link, "", *math.findall(part), ""])
    text = (docs / "howto" / "losses.md").read_text(encoding="utf-8")
    text = text.partition("## Estimators")[2]
    names = re.findall(r"^\| `(\w+)\(", text.partition("```")[0], re.MULTILINE)
    link = "Formulas, with the value `v`, `d` for `done`, `e` for `terminated`: "
    link += "[estimators](../../../howto/losses.md#estimators)."
    for name in names:
        found[name] = [link, "", *math.findall(text)[:1], ""]
    return found


class Writer:
    """Writes pages; knows the documented path of every object, for links in signatures."""

    def __init__(self, packages: list[Package]) -> None:
        self.documented = {
            path: name for package in packages for path, name in package.paths()
        }
        self.sources: dict[Path, Path] = {}
        self.names = {path.rpartition(".")[2] for path in self.documented.values()}
        self.formulas = formulas()

    def package(self, package: Package) -> None:
        """Write all pages of a package."""
        folder = OUT / package.name
        folder.mkdir(parents=True)
        write(folder / "index.md", self.overview(package))
        for name, path, target in package.classes():
            top = [f"[Reference](../index.md) / [{package.root}](index.md)", ""]
            page = ["---", "orphan: true", "---", "", f"# {name}", "", *top]
            write(folder / f"{name}.md", [*page, *self.entry(target, path)])
        if package.others():
            top = [f"[Reference](../index.md) / [{package.root}](index.md)", ""]
            page = ["---", "orphan: true", "---", "", f"# Functions of {package.root}"]
            lines = self.entries(package.others())
            write(folder / "functions.md", [*page, "", *top, *lines])
        for name, (module, entries) in package.extra.items():
            top = [f"[Reference](../index.md) / [{package.root}](index.md)", ""]
            page = ["---", "orphan: true", "---", "", f"# {name}", "", *top]
            page += [text_of(module), ""]
            here = [one for one in entries if package.documented(one) == one[1]]
            again = [one for one in entries if package.documented(one) != one[1]]
            if again:
                rows = [(package.documented(one), one[0], one[2]) for one in again]
                page += ["## Also at the root of the package", "", *table(rows)]
            write(folder / f"{name}.md", [*page, *self.entries(here)])

    def overview(self, package: Package) -> list[str]:
        """The page with the tables of a package."""
        lines = [f"# {package.root}", "", text_of(package.module), ""]
        lines += [f"Distribution `{package.name}`: `pip install {package.name}`.", ""]
        groups: dict[str, list[Entry]] = {}
        for one in package.classes():
            groups.setdefault(theme(one[2]), []).append(one)
        if len(package.classes()) <= SMALL:
            groups = {"classes": package.classes()}
        alone = {name for name, entries in groups.items() if len(entries) < 3}
        if len(alone) > 1:
            rest = [one for name in sorted(alone) for one in groups.pop(name)]
            groups["others"] = sorted(rest)
        for name, entries in sorted(groups.items(), key=lambda one: one[0] == "others"):
            lines += [f"## {name[:1].upper()}{name[1:].replace('_', ' ')}", ""]
            lines += table((f"{name}.md", name, target) for name, _, target in entries)
        if package.others():
            lines += ["## Functions and values", ""]
            lines += table(
                (path, name, target) for name, path, target in package.others()
            )
        if package.extra:
            lines += ["## Modules", ""]
            extra = package.extra.items()
            lines += table((f"{name}.md", name, module) for name, (module, _) in extra)
        return lines

    def entries(self, entries: list[Entry]) -> list[str]:
        """Several classes, functions or values."""
        return [line for _, path, one in entries for line in self.entry(one, path)]

    def entry(self, target: Any, path: str) -> list[str]:
        """One class, function, or value."""
        if target is None:
            return block("py:data", path, ["Re-exported from a third-party package."])
        if target.is_class:
            said = [*docstring(target), *self.formulas.get(target.name, [])]
            body = [*self.about(target), *said, *self.methods(target)]
            return block("py:class", path + self.signature(target), body)
        body = [*self.about(target), *docstring(target)]
        kind = "py:function" if target.is_function else "py:data"
        title = path + (self.signature(target) if target.is_function else "")
        return block(kind, title, body)

    def about(self, target: Any) -> Iterator[str]:
        """The link to the source, and of a class what it inherits from."""
        file = Path(target.filepath)
        page = SOURCES / file.relative_to(file.parents[_depth(file)]).with_suffix(
            ".html"
        )
        self.sources[file] = page
        url = (
            f"../../../source/{page.relative_to(SOURCES).as_posix()}#L-{target.lineno}"
        )
        bases = ", ".join(
            f"`{str(base).partition('[')[0].rpartition('.')[2]}`"
            for base in getattr(target, "bases", ())
        )
        said = f" Inherits {bases}." if bases else ""
        yield f'<a class="source" href="{url}">source</a>{said}'
        yield ""

    def methods(self, target: Any) -> list[str]:
        """The public methods and properties of a class that say something about themselves."""
        lines: list[str] = []
        for name, member in [*target.members.items(), *hidden(target)]:
            if name.startswith("_") or member.is_alias or not member.docstring:
                continue
            kind = "py:method" if member.is_function else "py:attribute"
            title = name + (self.signature(member) if member.is_function else "")
            options = []
            if not member.is_function and member.annotation is not None:
                options = [f":type: {self.annotation(member.annotation)}", ""]
            lines += block(kind, title, [*options, *docstring(member)], fence=":::")
        return lines

    def signature(self, target: Any) -> str:
        """Parameters with types and defaults, without self, and what is returned."""
        words: list[str] = []
        star = False
        for parameter in target.parameters:
            if parameter.name in ("self", "cls"):
                continue
            kind = parameter.kind.value if parameter.kind else ""
            if kind == "keyword-only" and not star:
                words.append("*")
                star = True
            star = star or kind == "variadic positional"
            mark = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
            text = mark + parameter.name
            if parameter.annotation is not None:
                text += f": {self.annotation(parameter.annotation)}"
            if parameter.default is not None and not mark:
                text += f" = {parameter.default}"
            words.append(text)
        returns = None if target.is_class else target.returns
        after = "" if returns is None else f" -> {self.annotation(returns)}"
        return " ".join(f"({', '.join(words)}){after}".split())

    def annotation(self, expression: Any) -> str:
        """A type, with the documented path of each of our classes, so that Sphinx finds it."""
        if isinstance(expression, str):
            return expression
        parts = []
        for part in expression.iterate(flat=True):
            if isinstance(part, str):
                parts.append(part)
            else:
                # From a folder of a package, or repeated in a class: known at the package's root.
                path, scope = _canonical(part), getattr(part.parent, "path", "")
                roots = [".".join(one.split(".")[:2]) for one in (path, scope)]
                tried = [path, *(f"{root}.{part.name}" for root in roots)]
                known = next((one for one in tried if one in self.documented), "")
                # Sphinx would take another package's `Sequence` for ours of that name.
                other = path if part.name in self.names else part.name
                parts.append(self.documented.get(known, other))
        return "".join(parts)


def _canonical(name: Any) -> str:
    try:
        return str(name.canonical_path)
    except griffe.NameResolutionError:
        return str(name.name)


def _depth(file: Path) -> int:
    """The index of the folder `src` among the parents of a source file."""
    return [parent.name for parent in file.parents].index("src")


def theme(target: Any) -> str:
    """The part of a package where something is defined: its file or folder."""
    parts = target.path.split(".")[2:-1]
    return str(parts[0]).strip("_") if parts else "others"


def text_of(target: Any) -> str:
    """The docstring of a module."""
    return escape(target.docstring.value) if target.docstring else ""


def table(rows: Iterable[tuple[str, str, Any]]) -> list[str]:
    """Names with links to a page or an entry, and the first sentence of each."""
    lines = ["| name | |", "|---|---|"]
    for link, name, target in rows:
        text = first_sentence(target).replace("|", "\\|")
        page = f"[`{name}`]({link})" if link.endswith(".md") else ""
        lines.append(f"| {page or f'{{py:obj}}`{name} <{link}>`'} | {text} |")
    return [*lines, ""]


def first_sentence(target: Any) -> str:
    """What a docstring begins with."""
    if target is None:
        return "Re-exported from a third-party package."
    if not target.docstring:
        return ""
    first = " ".join(target.docstring.value.partition("\n\n")[0].split())
    return escape(re.split(r"(?<=[.])\s+(?=[A-Z])", first)[0])


def hidden(target: Any) -> Iterator[tuple[str, Any]]:
    """Members of bases that have no page of their own."""
    try:
        bases = target.mro()
    except ValueError:
        return
    seen = set(target.members)
    for base in bases:
        if base.name not in (base.package.exports or ()):
            yield from (
                (name, member)
                for name, member in base.members.items()
                if name not in seen
            )
        seen |= set(base.members)


def docstring(target: Any) -> Iterator[str]:
    """A docstring's sections as Markdown."""
    if not target.docstring:
        return
    for section in target.docstring.parse("google", warnings=False):
        kind = section.kind.value
        if kind == "text":
            yield from (escape(section.value), "")
        elif kind in ("returns", "yields"):
            said = " ".join(
                str(value.description) for value in section.value
            )  # griffe takes each line for a value
            yield from (f"**{kind.capitalize()}** {escape(' '.join(said.split()))}", "")
        elif kind in ("parameters", "attributes", "raises"):
            yield from items(kind, section.value)
        elif kind == "examples":
            yield from code("\n".join(text for _, text in section.value))
        elif kind == "admonition":
            title, text = section.title or section.value.kind, section.value.contents
            if ">>>" in text:
                yield from code(text)
            else:
                yield from (f"**{title}.** {escape(text)}", "")


def items(kind: str, values: Any) -> Iterator[str]:
    """A list of parameters or errors."""
    yield from (f"**{kind.capitalize()}**", "")
    for value in values:
        name = getattr(value, "name", "") or (
            str(value.annotation) if value.annotation else ""
        )
        text = " ".join(str(value.description).split())
        yield f"- `{name}`: {escape(text)}" if name else f"- {escape(text)}"
    yield ""


def code(text: str) -> list[str]:
    """A block of Python; with prompts, which the copy button leaves out."""
    return ["````pycon" if ">>>" in text else "````python", text, "````", ""]


def escape(text: str) -> str:
    """Docstrings write code in double backquotes and use `*` in shapes: Markdown must not see emphasis there."""
    parts = re.split(r"(`[^`]*`)", text.replace("``", "`"))
    return "".join(
        part if part.startswith("`") else re.sub(r"\*\*|(?<=\[)\*", r"\\\g<0>", part)
        for part in parts
    )


def block(kind: str, title: str, body: list[str], fence: str = "::::") -> list[str]:
    """A MyST directive."""
    return [f"{fence}{{{kind}}} {title}", *body, fence, ""]


def plugins_page(projects: list[Path]) -> Iterator[str]:
    """List the plugins among projects: entry points, components by kind, commands."""
    yield "# Plugins"
    yield ""
    yield "What `rl plugins --all` lists with every plugin of this repository installed;"
    yield "the last one is the output of `rl new plugin`."
    sys.path += [str(path / "src") for path in projects]
    for path in projects:
        project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
        entries = project.get("entry-points", {}).get("rl.plugins", {})
        for target in entries.values():
            declaration = import_module(target)
            yield from ("", f"## {project['name']}", "", project["description"], "")
            needs = [one for one in project["dependencies"] if one.startswith("rl-")]
            yield from (f"Needs `{', '.join(needs)}`. Declared in `{target}`.", "")
            yield from ("| kind | names |", "|---|---|", *offers(declaration))


def offers(declaration: Any) -> Iterator[str]:
    """Rows of the table of a plugin."""
    kinds: dict[str, list[str]] = {}
    for component in getattr(declaration, "rl_components", tuple)():
        kinds.setdefault(component.kind, []).append(f"`{component.name}`")
    commands = getattr(declaration, "rl_commands", tuple)()
    for command in commands if hasattr(commands, "__iter__") else [commands]:
        words = command.name.replace("/", " ")
        kinds.setdefault("command", []).append(f"`rl {words}`")
    hooks = [name for name in dir(declaration) if name.startswith("rl_")]
    if more := sorted({*hooks} - {"rl_components", "rl_commands"}):
        kinds["hook"] = [f"`{name}`" for name in more]
    for kind, names in sorted(kinds.items()):
        yield f"| {kind} | {', '.join(sorted(names))} |"


def write(path: Path, lines: Iterable[str]) -> None:
    """Write a page, unless it is there already: Sphinx then does not read it again."""
    text = "\n".join(lines) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_source(file: Path, page: Path) -> None:
    """Write a source file as HTML with an anchor `L-NUMBER` for each line."""
    if page.is_file() and page.stat().st_mtime > file.stat().st_mtime:
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    up = "../" * len(page.relative_to(SOURCES).parents)  # the folder source counts, too
    name = page.relative_to(SOURCES).with_suffix(".py").as_posix()
    look = HtmlFormatter(lineanchors="L")
    text = highlight(file.read_text(encoding="utf-8"), PythonLexer(), look)
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<link rel="stylesheet" href="{up}_static/pygments.css">'
        f'<link rel="stylesheet" href="{up}_static/site.css">'
    )
    body = f'<body class="source-page"><h1>{name}</h1>{text}</body></html>'
    page.write_text(f"{head}{body}\n", encoding="utf-8")


def main() -> None:
    """Write every page and the list of them."""
    folders = [path.parent for path in (ROOT / "packages").glob("*/pyproject.toml")]
    packages = [Package(folder) for folder in sorted(folders)]
    writer = Writer(packages)
    shutil.rmtree(OUT, ignore_errors=True)
    for package in packages:
        writer.package(package)
    for file in (ROOT / "packages").glob("*/benchmarks/*.py"):
        writer.sources[file] = SOURCES / file.relative_to(ROOT).with_suffix(".html")
    for file, page in writer.sources.items():
        write_source(file, page)
    rows = [
        (f"{package.name}/index.md", package.root, package.module)
        for package in packages
    ]
    plugins = [*sorted(folders), ROOT / "template" / "rl-plugin-example"]
    write(OUT / "plugins.md", plugins_page(plugins))
    toc = ["plugins", *(f"{package.name}/index" for package in packages)]
    lines = ["# Reference", "", "Each class has a page, each package tables of them;"]
    lines += [
        "[the plugins](plugins.md) are listed by what they add.",
        "",
        *table(rows),
    ]
    write(OUT / "index.md", [*lines, "```{toctree}", ":hidden:", "", *toc, "```"])


if __name__ == "__main__":
    main()
