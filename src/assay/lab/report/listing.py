"""Code to copy: a study's demonstration as a script of its own, and Python source with its parts marked."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import keyword
import tokenize
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from markupsafe import Markup, escape

from assay.lab.study import Study

__all__ = ["example_code", "highlight"]


def example_code(study: type[Study]) -> str:
    """Source of a study's ``demonstrate`` as a script that runs when it is pasted.

    The imports that it takes from its module are written out, and what it returns is printed. A function that is more
    than a sequence of statements (it uses ``self``, or returns early) is given as it stands.

    Parameters
    ----------
    study : type
        The study class.

    Returns
    -------
    str

    Raises
    ------
    OSError
        If the source is not available.
    SyntaxError
        If it cannot be taken out of its surroundings.
    """
    function = inspect.unwrap(study.demonstrate)
    source = inspect.getsource(function).rstrip()
    source = _outdented(source, len(source) - len(source.lstrip()))
    (definition,) = ast.parse(source).body
    script = _as_script(source, definition) if isinstance(definition, ast.FunctionDef) else None
    if script is None:
        return source
    imports = _imports(ast.parse(script), function.__globals__, function.__module__)
    return "\n".join([*imports, *([""] if imports else []), script])


def _as_script(source: str, definition: ast.FunctionDef) -> str | None:
    """Body of the function with its last ``return`` printed, or None when that would not be the same."""
    nodes = list(ast.walk(definition))
    receiver = {argument.arg for argument in definition.args.args}
    if any(isinstance(node, ast.Name) and node.id in receiver for node in nodes):
        return None
    *_, last = statements = definition.body
    inner = {
        id(node)
        for function in nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and function is not definition
        for node in ast.walk(function)
    }
    own = [node for node in nodes if id(node) not in inner]
    returns = [node for node in own if isinstance(node, ast.Return)]
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own) or (returns and returns != [last]):
        return None
    has_docstring = ast.get_docstring(definition, clean=False) is not None
    if has_docstring and len(statements) == 1:
        return None
    # Counted from the end of what is left out, so that comments above the first statement stay.
    begin = statements[0].end_lineno if has_docstring else _end_of_signature(definition)
    lines = source.splitlines()[begin:]
    if isinstance(last, ast.Return):
        del lines[last.lineno - 1 - begin :]
        shown = _printable(source, last.value)
        if shown:
            lines += [" " * last.col_offset + f'print({shown}, sep="\\n")']
    script = _outdented("\n".join(lines), statements[0].col_offset).strip("\n")
    return script if ast.parse(script).body else None


def _outdented(source: str, width: int) -> str:
    """Source moved to the left, except where the start of a line is inside a string."""
    inside, openings = set(), []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif tokenize.tok_name[token.type] == "FSTRING_START":
            openings.append(token.start[0])
        elif tokenize.tok_name[token.type] == "FSTRING_END":
            inside.update(range(openings.pop() + 1, token.end[0] + 1))
    lines = enumerate(source.splitlines(), start=1)
    return "\n".join(
        line if row in inside else line[min(width, len(line) - len(line.lstrip())) :] for row, line in lines
    )


def _end_of_signature(definition: ast.FunctionDef) -> int:
    """Last line of ``def ...:`` when the body starts on a line of its own."""
    parts = [definition.lineno, *(a.end_lineno or 0 for a in ast.walk(definition.args) if hasattr(a, "end_lineno"))]
    if definition.returns is not None:
        parts.append(definition.returns.end_lineno or 0)
    return max(parts)


def _printable(source: str, value: ast.expr | None) -> str:
    """Arguments of ``print`` that show one certificate a line; empty when there is nothing to show."""
    if value is None:
        return ""
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [ast.Starred(value)]
    words = []
    for part in parts:
        star, inner = ("*", part.value) if isinstance(part, ast.Starred) else ("", part)
        words.append(star + (ast.get_source_segment(source, inner) or ast.unparse(inner)))
    return ", ".join(words)


def _imports(tree: ast.Module, available: Mapping[str, Any], module: str) -> list[str]:
    """Import statements for the names that a script takes from the module around it."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    wanted = sorted({node.id for node in names} - bound - set(dir(builtins)))
    lines = []
    for name in (name for name in wanted if name in available):
        thing = available[name]
        if isinstance(thing, ModuleType):
            lines.append(f"import {thing.__name__}" + (f" as {name}" if thing.__name__ != name else ""))
            continue
        home, original = getattr(thing, "__module__", None), getattr(thing, "__name__", None)
        if not isinstance(home, str) or not isinstance(original, str) or not original.isidentifier():
            home, original = module, name
        lines.append(f"from {home} import {original}" + (f" as {name}" if original != name else ""))
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


def highlight(code: str) -> Markup:
    """Python source as HTML, with keywords, strings, numbers and comments marked.

    Parameters
    ----------
    code : str
        The source; text that is not Python is escaped and otherwise left alone.

    Returns
    -------
    markupsafe.Markup

    Examples
    --------
    >>> highlight("x = 1")
    Markup('x = <span class="n">1</span>')
    """
    lines = code.splitlines(keepends=True)
    pieces: list[Markup] = []
    row, column = 1, 0

    def copy_until(end_row: int, end_column: int) -> str:
        nonlocal row, column
        taken = []
        while row < end_row and row <= len(lines):
            taken.append(lines[row - 1][column:])
            row, column = row + 1, 0
        if row <= len(lines):
            taken.append(lines[row - 1][column:end_column])
            column = end_column
        return "".join(taken)

    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            kind = _kind(token)
            if kind is None:
                continue
            pieces.append(escape(copy_until(*token.start)))
            pieces.append(Markup('<span class="{}">{}</span>').format(kind, copy_until(*token.end)))
    except (tokenize.TokenError, SyntaxError):
        return escape(code)
    pieces.append(escape(copy_until(len(lines) + 1, 0)))
    return Markup("").join(pieces)


def _kind(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.COMMENT:
        return "c"
    if token.type == tokenize.NUMBER:
        return "n"
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "s"
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "k"
    return None
