"""A tree of yes-no questions as text, and as a graph in the language of Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.validation import check_integer

__all__ = ["tree_to_dot", "tree_to_text"]


def tree_to_text(tree: Any, questions: Sequence[tuple[str, str]], classes: Sequence[str], max_depth: int = 100) -> str:
    """Write a tree as indented text.

    Parameters
    ----------
    tree : GreedyTree
        The tree.
    questions : sequence of pairs of str
        For each variable, what it says when it is 0 and when it is 1.
    classes : sequence of str
        Names of the labels 0 and 1.
    max_depth : int, default=100
        Deeper subtrees are cut.

    Returns
    -------
    str
        With one line per answer and leaf: line breaks within names are written as spaces.

    Raises
    ------
    ValueError, TypeError
        If there are not two classes, or ``max_depth`` is no integer of at least 0.

    Examples
    --------
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.greedy_tree_export import tree_to_text
    >>> print(tree_to_text(build_topdown_tree([0, 1], 1), [("off", "on")], ["no", "yes"]))
    |--- off
    |   |--- class: no (reach 0.5)
    |--- on
    |   |--- class: yes (reach 0.5)
    """
    classes = _two_names(classes)
    check_integer(max_depth, "max_depth", minimum=0)
    lines: list[str] = []
    stack: list[tuple[int, int, str]] = [(0, 0, "")]
    while stack:
        node, depth, question = stack.pop()
        if question:
            lines.append("|   " * (depth - 1) + f"|--- {_one_line(question)}")
        bar = "|   " * depth + "|--- "
        if tree.feature[node] < 0:
            lines.append(f"{bar}class: {_one_line(classes[tree.label[node]])} (reach {tree.prob[node]:.4g})")
        elif depth >= max_depth:
            lines.append(f"{bar}truncated branch")
        else:
            low, high = questions[tree.feature[node]]
            stack += [(int(tree.right[node]), depth + 1, high), (int(tree.left[node]), depth + 1, low)]
    return "\n".join(lines)


def tree_to_dot(tree: Any, questions: Sequence[tuple[str, str]], classes: Sequence[str]) -> str:
    r"""Write a tree as a ``digraph`` for Graphviz; the left branch is where the variable is 0.

    Parameters
    ----------
    tree, questions, classes
        As in :func:`tree_to_text`.

    Returns
    -------
    str

    Examples
    --------
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.greedy_tree_export import tree_to_dot
    >>> dot = tree_to_dot(build_topdown_tree([0, 1], 1), [("off", "on")], ["no", "yes"])
    >>> dot.splitlines()[2]
    '    0 [label="off\\nreach = 1\\nPr(yes) = 0.5"];'
    """
    classes = _two_names(classes)
    lines = ["digraph Tree {", '    node [shape=box, fontname="helvetica"];']
    for node in range(len(tree.feature)):
        numbers = f"reach = {tree.prob[node]:.4g}\\nPr({_quoted(classes[1])}) = {tree.value[node]:.4g}"
        variable = int(tree.feature[node])
        head = questions[variable][0] if variable >= 0 else f"class: {classes[tree.label[node]]}"
        shape = "" if variable >= 0 else ", style=rounded"
        lines.append(f'    {node} [label="{_quoted(head)}\\n{numbers}"{shape}];')
    for node in np.flatnonzero(tree.feature >= 0):
        for child, answer in ((tree.left[node], "yes"), (tree.right[node], "no")):
            lines.append(f'    {node} -> {child} [label="{answer}"];')
    return "\n".join([*lines, "}"])


def _two_names(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(str(name) for name in classes)
    if isinstance(classes, str) or len(names) != 2:
        raise ValueError(f"class_names must be two names, of the labels 0 and 1, got {classes!r}")
    return names


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _quoted(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace('"', '\\"')
