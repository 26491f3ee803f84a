"""Write one reference page per package from the sources, read with griffe, and a page of plugins from metadata.

A page lists what stands in the package's `__all__`, each with its signature and docstring, and names the source file.
Of plugins the declaration is imported, which imports neither torch nor the package.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "reference" / "api"
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


def package_page(package: Path) -> str:
    """The Markdown of one package."""
    short = package.name.removeprefix("rl-").replace("-", "_")
    root = f"rl.{short}"
    module = load(root, package)
    lines = [f"# {root}", "", (module.docstring.value if module.docstring else ""), ""]
    lines += [f"Distribution `{package.name}`: `pip install {package.name}`.", ""]
    lines += members(module)
    for name in EXTRA_MODULES.get(root, []):
        sub = module[name.removeprefix(root + ".")]
        sub = sub.final_target if sub.is_alias else sub
        lines += [
            f"## {name}",
            "",
            (sub.docstring.value if sub.docstring else ""),
            "",
            *members(sub, name),
        ]
    return "\n".join(lines) + "\n"


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


def members(module: Any, prefix: str | None = None) -> Iterator[str]:
    """The entries of what a module exports, sorted by name."""
    prefix = prefix or module.path
    for name in sorted(map(str, module.exports or ())):
        member = module.members.get(name)
        if member is None or name == "__version__":
            continue
        try:
            target = member.final_target if member.is_alias else member
        except griffe.AliasResolutionError:
            yield from block(
                "py:data",
                f"{prefix}.{name}",
                ["Re-exported from a third-party package."],
            )
            continue
        yield from entry(target, f"{prefix}.{name}")


def entry(target: Any, path: str) -> Iterator[str]:
    """One class, function, or value."""
    if target.is_class:
        body = [*source(target), *docstring(target), *methods(target)]
        yield from block("py:class", path + signature(target), body)
    elif target.is_function:
        yield from block(
            "py:function",
            path + signature(target),
            [*source(target), *docstring(target)],
        )
    elif not target.is_module:
        yield from block("py:data", path, list(docstring(target)))


def source(target: Any) -> Iterator[str]:
    """Where it is written, and of a class what it inherits from."""
    file = str(target.relative_package_filepath)
    bases = ", ".join(
        f"`{str(base).rpartition('.')[2]}`" for base in getattr(target, "bases", ())
    )
    yield from (f"In `{file}`" + (f", inherits {bases}." if bases else "."), "")


def methods(target: Any) -> list[str]:
    """The public methods and properties of a class that say something about themselves."""
    lines: list[str] = []
    for name, member in [*target.members.items(), *hidden(target)]:
        if name.startswith("_") or member.is_alias or not member.docstring:
            continue
        kind = "py:method" if member.is_function else "py:attribute"
        title = name + (signature(member) if member.is_function else "")
        lines += block(kind, title, list(docstring(member)), fence=":::")
    return lines


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


def signature(target: Any) -> str:
    """Parameters with defaults, without self and without types, which would not fit a line."""
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
        text = {"variadic positional": "*", "variadic keyword": "**"}.get(
            kind, ""
        ) + parameter.name
        words.append(
            text
            + (
                f"={parameter.default}"
                if parameter.default is not None and "*" not in text
                else ""
            )
        )
    return "(" + ", ".join(words).replace("\n", " ") + ")"


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
    """A block of Python."""
    return ["````python", text, "````", ""]


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


def plugins_page(projects: list[Path]) -> str:
    """List the plugins among projects: entry points, components by kind, commands."""
    lines = ["# Plugins", "", "What `rl plugins --all` lists with every plugin of"]
    lines += [
        "this repository installed; the last one is the output of `rl new plugin`."
    ]
    sys.path += [str(path / "src") for path in projects]
    for path in projects:
        project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
        entries = project.get("entry-points", {}).get("rl.plugins", {})
        for target in entries.values():
            declaration = import_module(target)
            lines += ["", f"## {project['name']}", "", project["description"], ""]
            needs = [one for one in project["dependencies"] if one.startswith("rl-")]
            lines += [f"Needs `{', '.join(needs)}`. Declared in `{target}`.", ""]
            lines += ["| kind | names |", "|---|---|", *offers(declaration)]
    return "\n".join(lines) + "\n"


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


def main() -> None:
    """Write every page and the list of them."""
    OUT.mkdir(parents=True, exist_ok=True)
    packages = sorted(
        path.parent for path in (ROOT / "packages").glob("*/pyproject.toml")
    )
    for package in packages:
        (OUT / f"{package.name}.md").write_text(package_page(package))
    plugins = [*packages, ROOT / "template" / "rl-plugin-example"]
    (OUT / "plugins.md").write_text(plugins_page(plugins))
    toc = "\n".join(["plugins", *(package.name for package in packages)])
    (OUT / "index.md").write_text(
        "# Reference\n\nThe plugins, and one page per package.\n\n"
        f"```{{toctree}}\n{toc}\n```\n"
    )


if __name__ == "__main__":
    main()
