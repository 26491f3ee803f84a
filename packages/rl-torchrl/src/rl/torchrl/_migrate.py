"""The engine of ``rl migrate``: code for another library or an older series of this toolkit, rewritten with LibCST.

What a name or an argument becomes is said by a `Source`; see `rl.torchrl._migrate_sources` and `rl.torchrl._sb3`. What
has no counterpart stays as it is, below a comment with what to use or to read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl.core.errors import ArgumentError, MissingExtraError
from rl.torchrl._migrate_sources import Source

try:
    import libcst as cst
    from libcst.metadata import MetadataWrapper, QualifiedName, QualifiedNameProvider, QualifiedNameSource
except ModuleNotFoundError as error:
    if error.name != "libcst":
        raise
    raise MissingExtraError('rl migrate needs LibCST: pip install "rl-torchrl[migrate]"') from error

MARK = "# rl migrate: "


@dataclass
class Result:
    """The new text of a file, and the notes in it."""

    text: str
    notes: list[str] = field(default_factory=list[str])


def migrate(text: str, source: Source) -> Result:
    r"""Rewrite the text of a module.

    Args:
        text: Text of the module.
        source: Rules that are applied.

    Raises:
        ArgumentError: If the text is no Python.

    Example:
        >>> from rl.torchrl._migrate_sources import Renamed
        >>> print(migrate("from rl.core.lowering import lower\nf = lower(g)\n", Renamed("0.2")).text)
        from rl.core.tensor_functions import as_function
        f = as_function(g)
    """
    if not any(root in text for root in source.roots):
        return Result(text)
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise ArgumentError(f"line {error.raw_line} is no Python: {error.message.splitlines()[0]}") from error
    transformer = getattr(source, "transformer", lambda: MigrateTransformer(source))()
    changed = MetadataWrapper(module, unsafe_skip_copy=True).visit(transformer)
    if transformer.modules:
        changed = changed.visit(_Imports(source, transformer.modules, transformer.replaced))
    return Result(changed.code, transformer.notes)


class MigrateTransformer(cst.CSTTransformer):
    """Replace names, arguments and imports of names."""

    METADATA_DEPENDENCIES = (QualifiedNameProvider,)

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.modules: set[str] = set()
        """Modules that are to be imported, for names after a dot."""
        self.replaced: set[str] = set()
        """First words of the dotted names that were replaced."""
        self.notes: list[str] = []
        self._waiting: list[list[str]] = [[]]
        self._header: Sequence[cst.EmptyLine] = ()  # comments above the first statement

    # ------------------------------------------------------------------ names

    def _old(self, node: cst.CSTNode) -> str:
        """Return the dotted name of the library that an expression stands for; an empty string without one."""
        found: Iterable[QualifiedName] = self.get_metadata(QualifiedNameProvider, node, ())
        names = [one.name for one in found if one.source is QualifiedNameSource.IMPORT]
        return names[0] if len(names) == 1 and names[0].partition(".")[0] in self.source.roots else ""

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Rename a name that was imported without an alias."""
        old = self._old(original_node)
        if not old or old.rpartition(".")[2] != original_node.value:
            return updated_node
        answer = self.source.name(old)
        if answer is None or answer.new is None:
            return updated_node
        return updated_node.with_changes(value=answer.new.rpartition(".")[2])

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Replace a name after a dot by its new dotted name, whose module is imported."""
        old = self._old(original_node)
        answer = self.source.name(old) if old else None
        if answer is None:
            return updated_node
        if answer.new is None or answer.note:
            self.note(answer.note)
        if answer.new is None or self._old(original_node.value) != old.rpartition(".")[0]:
            return updated_node
        module = answer.new.rpartition(".")[0]
        self.modules.add(module)
        self.replaced.add(code(original_node).partition(".")[0].strip())
        return cst.parse_expression(answer.new)

    def visit_Module(self, node: cst.Module) -> None:
        """Keep the comments above the first statement."""
        self._header = node.header

    def visit_Import(self, node: cst.Import) -> bool:
        """Leave imports to `leave_SimpleStatementLine`."""
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Leave imports to `leave_SimpleStatementLine`."""
        return False

    def visit_Arg(self, node: cst.Arg) -> None:
        """Names of arguments are no names of the library."""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Rename, drop and comment keyword arguments."""
        old = self._old(original_node.func)
        answer = self.source.name(old) if old else None
        if answer is None or answer.new is None:
            return updated_node
        kept: list[cst.Arg] = []
        for arg in updated_node.args:
            new = arg
            if arg.keyword is not None:
                found = self.source.argument(answer.new, arg.keyword.value, literal(arg.value))
                self.note(found.note)
                if found.drop:
                    continue
                if found.new is not None:
                    new = arg.with_changes(keyword=arg.keyword.with_changes(value=found.new))
            kept.append(new)
        if len(kept) < len(updated_node.args) and kept and not isinstance(original_node.args[-1].comma, cst.Comma):
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(args=kept)

    # ------------------------------------------------------------------ comments

    def note(self, text: str) -> None:
        """Write a comment above the statement that is being visited."""
        if text and text not in self._waiting[-1]:
            self._waiting[-1].append(text)

    def _comment(self, node: Any) -> Any:
        """Return a statement with the notes of its own expressions above it."""
        notes = self._waiting.pop()
        self.notes += notes
        above = [line.comment.value for line in (*self._header, *node.leading_lines) if line.comment is not None]
        lines = [MARK + note for note in notes if MARK + note not in above]
        extra = [cst.EmptyLine(comment=cst.Comment(line)) for line in lines]
        return node.with_changes(leading_lines=[*node.leading_lines, *extra]) if extra else node

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Begin a list of notes for each statement."""
        if isinstance(node, _STATEMENTS):
            self._waiting.append([])
            if isinstance(node, cst.ClassDef):
                for base in node.bases:
                    answer = self.source.name(old) if (old := self._old(base.value)) else None
                    if answer is not None and answer.new is not None:
                        self.note(self.source.subclass(answer.new))
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Write the notes above a statement; an import may become several."""
        result = super().on_leave(original_node, updated_node)
        if not isinstance(original_node, _STATEMENTS):
            return result
        if isinstance(original_node, cst.SimpleStatementLine):
            return self._leave_line(result)
        return self._comment(result)

    def _leave_line(self, node: Any) -> Any:
        (first, *more) = node.body
        if more or not isinstance(first, cst.ImportFrom) or isinstance(first.names, cst.ImportStar):
            if isinstance(first, cst.ImportFrom) and self._module(first):
                self.note(f"import the names of {self._module(first)} one by one, and migrate again")
            return self._comment(node)
        groups = self._groups(first)
        if groups is None:
            return self._comment(node)
        made: list[cst.SimpleStatementLine] = []
        comments: list[cst.EmptyLine] = []
        for module, names in groups.items():
            changed = first.with_changes(module=_name_expression(module), names=names)
            if len(groups) > 1 or len(names) != len(first.names):
                plain = [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in names]
                changed = changed.with_changes(names=plain, lpar=None, rpar=None)
                found = re.findall(r"#[^\n]*", code(first))
                comments = [cst.EmptyLine(comment=cst.Comment(text)) for text in found]
            made.append(cst.SimpleStatementLine([changed]))
        made[0] = made[0].with_changes(leading_lines=[*node.leading_lines, *comments])
        made[-1] = made[-1].with_changes(trailing_whitespace=node.trailing_whitespace)
        old = [index for index, module in enumerate(groups) if module.partition(".")[0] in self.source.roots]
        at = old[0] if old else 0
        made[at] = self._comment(made[at])
        return cst.FlattenSentinel(made)

    def _module(self, node: cst.ImportFrom) -> str:
        """Return the dotted module of an import of the library; an empty string for another or a relative one."""
        if node.relative or node.module is None:
            return ""
        module = code(node.module)
        return module if module.partition(".")[0] in self.source.roots else ""

    def _groups(self, node: cst.ImportFrom) -> dict[str, list[cst.ImportAlias]] | None:
        """Return the imported names by their new modules; None if nothing changes."""
        module = self._module(node)
        if not module:
            return None
        groups: dict[str, list[cst.ImportAlias]] = {}
        names: Any = node.names
        for alias in names:
            old = f"{module}.{alias.name.value}"
            answer = self.source.name(old)
            if answer is None:  # a module, which `_Imports` treats
                groups.setdefault(module, []).append(alias)
                continue
            self.note(answer.note)
            if answer.new is None:
                groups.setdefault(module, []).append(alias)
                continue
            for target in getattr(self.source, "imports", lambda new: [new])(answer.new):
                where, _, name = target.rpartition(".")
                same = alias.with_changes(name=cst.Name(name))
                if same.asname is not None and same.asname.name.value == name:
                    same = same.with_changes(asname=None)
                listed = groups.setdefault(where, [])
                if not any(one.name.value == name and one.asname is None for one in listed):
                    listed.append(same)
        if list(groups) == [module] and groups[module] == list(names):
            return None
        stays = groups.pop(module, None)
        return groups if stays is None else {**groups, module: stays}


_STATEMENTS = (
    cst.SimpleStatementLine,
    cst.If,
    cst.For,
    cst.While,
    cst.With,
    cst.Try,
    cst.FunctionDef,
    cst.ClassDef,
    cst.Match,
)


class _Imports(cst.CSTTransformer):
    """Remove imports of modules of the library that nothing uses any more, and import the new modules."""

    def __init__(self, source: Source, modules: set[str], replaced: set[str]) -> None:
        super().__init__()
        self.source, self.modules, self.replaced = source, sorted(modules), replaced
        self.used: set[str] = set()

    def visit_Module(self, node: cst.Module) -> bool:
        """Collect the names that are used outside of imports."""
        collector = _Used()
        node.visit(collector)
        self.used = collector.names
        return True

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Remove what is unused, and put the new imports there."""
        (first, *more) = updated_node.body
        if more or not isinstance(first, (cst.Import, cst.ImportFrom)) or isinstance(first.names, cst.ImportStar):
            return updated_node
        if not any(self._is_replaced(first, alias) for alias in first.names):
            return updated_node
        names = [alias for alias in first.names if not self._is_left_over(first, alias)]
        new = [cst.SimpleStatementLine([cst.Import([cst.ImportAlias(_name_expression(one))])]) for one in self.modules]
        self.modules = []
        if names:
            names[-1] = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            new.append(updated_node.with_changes(body=[first.with_changes(names=names)], leading_lines=[]))
        if new:
            new[0] = new[0].with_changes(leading_lines=updated_node.leading_lines)
        return cst.FlattenSentinel(new) if new else cst.RemoveFromParent()

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Import the modules that no import made room for, below the docstring and ``__future__``."""
        body = list(updated_node.body)
        at = 0
        for index, line in enumerate(body):
            match line:
                case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]):
                    at = max(at, int(index == 0))
                case cst.SimpleStatementLine(body=[cst.ImportFrom(module=cst.Name(value="__future__"))]):
                    at = index + 1
                case _:
                    pass
        known = {code(line).strip() for line in body if isinstance(line, cst.SimpleStatementLine)}
        new = [cst.SimpleStatementLine([cst.Import([cst.ImportAlias(_name_expression(one))])]) for one in self.modules]
        new = [line for line in new if code(line).strip() not in known]
        if new and at < len(body) and not any(line.comment for line in body[at].leading_lines):
            new[0] = new[0].with_changes(leading_lines=body[at].leading_lines)  # the blank line above the imports
            body[at] = body[at].with_changes(leading_lines=[])
        return updated_node.with_changes(body=[*body[:at], *new, *body[at:]])

    def _bound(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> str:
        """Return the dotted name by which the module of an import is used: ``a.b`` of ``import a.b``."""
        return code(alias.name if alias.asname is None else alias.asname.name)

    def _is_replaced(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> bool:
        """Whether an import is of a module of the library whose names, or some of them, were replaced."""
        if isinstance(node, cst.ImportFrom) and (node.relative or node.module is None):
            return False
        name = code(alias.name)
        old = f"{code(node.module)}.{name}" if isinstance(node, cst.ImportFrom) and node.module is not None else name
        ours = old.partition(".")[0] in self.source.roots and self.source.name(old) is None
        return ours and self._bound(node, alias).partition(".")[0] in self.replaced

    def _is_left_over(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> bool:
        """Whether nothing uses the name that an import binds any more."""
        bound = self._bound(node, alias)
        if bound.startswith("rl."):  # other modules of the namespace are imported by themselves
            used = any(f"{one}.".startswith(f"{bound}.") for one in self.used)
        else:
            used = any(one.partition(".")[0] == bound.partition(".")[0] for one in self.used)
        return self._is_replaced(node, alias) and not used


class _Used(cst.CSTVisitor):
    """Dotted names that are used outside of imports."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        self.names.add(code(node))
        node.value.visit(self)  # not what follows the dot
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


def _name_expression(name: str) -> Any:
    return cst.parse_expression(name)


def code(node: cst.CSTNode) -> str:
    """Return the text of a part of a module."""
    return cst.Module([]).code_for_node(node)


def literal(node: cst.BaseExpression) -> object:
    """Return the value of a literal; `...` for any other expression."""
    try:
        return ast.literal_eval(code(node))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...
