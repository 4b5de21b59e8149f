"""What every solver returns: named fields, the certificates, and the history of the iteration.

A result type is a frozen dataclass that derives from :class:`Result` and adds its own fields. It inherits a
``repr`` that fits on a few lines, :meth:`Result.to_dict` for files and the command line, and
:meth:`Result.require`, which turns a broken promise into an exception.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from assay.certificate import Certificate

__all__ = ["Result", "to_jsonable"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Result:
    """Base of all result types.

    Parameters
    ----------
    certificates : tuple of Certificate, default=()
        The promises of the method, evaluated on this result.
    history : dict of str to numpy.ndarray, default={}
        Arrays of equal length, one entry per recorded iteration. Empty for a method that does not iterate.

    Raises
    ------
    ValueError
        If the arrays of ``history`` differ in length, or one is a single number.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from assay import Certificate
    >>> from assay.result import Result
    >>> @dataclass(frozen=True, kw_only=True, repr=False, eq=False)
    ... class RootResult(Result):
    ...     root: float
    >>> answer = RootResult(root=2.0, certificates=(Certificate("residual |x^2 - 4|", 0.0, 1e-12),))
    >>> answer
    RootResult(
        root=2.0,
        certificates: 1 of 1 hold,
    )
    >>> answer.require().root
    2.0
    """

    certificates: tuple[Certificate, ...] = ()
    history: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "certificates", tuple(self.certificates))
        history = {name: np.asarray(column) for name, column in self.history.items()}
        lengths = {name: len(column) if column.ndim else "a single number" for name, column in history.items()}
        if len(set(lengths.values())) > 1 or "a single number" in lengths.values():
            raise ValueError(f"history must have columns of equal length, got {lengths}")
        object.__setattr__(self, "history", history)

    @property
    def certified(self) -> bool:
        """Whether there is a certificate, all of them hold, and no assumption is known to be violated."""
        return bool(self.certificates) and all(c.holds and not c.violated for c in self.certificates)

    def require(self) -> Self:
        """Return the result itself if every certificate holds.

        Raises
        ------
        CertificateError
            For the first certificate that does not hold or whose assumptions are violated.
        """
        for certificate in self.certificates:
            certificate.require()
        return self

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-ready types (arrays become lists, nan and infinities become strings)."""
        return {f.name: to_jsonable(getattr(self, f.name)) for f in _own_fields_first(self)}

    def __repr__(self) -> str:
        lines = [f"    {f.name}={_brief(getattr(self, f.name))}," for f in _own_fields_first(self)[:-2] if f.repr]
        holding = sum(c.holds for c in self.certificates)
        lines.append(f"    certificates: {holding} of {len(self.certificates)} hold,")
        if self.history:
            length = len(next(iter(self.history.values())))
            lines.append(f"    history: {length} rows of {', '.join(self.history)},")
        return f"{type(self).__name__}(\n" + "\n".join(lines) + "\n)"


def to_jsonable(content: Any) -> Any:
    """Turn nested content (arrays, tensors, sparse matrices, dataclasses, certificates) into JSON-ready types.

    Parameters
    ----------
    content : object
        Anything a result holds. nan and infinities become the strings ``"nan"``, ``"inf"`` and ``"-inf"``, a
        sparse matrix becomes its non-zeros ``{"shape", "row", "column", "value"}``, and an object of another
        type becomes its ``str``.

    Returns
    -------
    dict, list, str, float, int, bool or None
        Content that ``json.dumps(..., allow_nan=False)`` accepts.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.result import to_jsonable
    >>> to_jsonable({"x": np.array([0.5, np.inf]), "n": np.int64(3)})
    {'x': [0.5, 'inf'], 'n': 3}
    """
    if content is None or isinstance(content, bool | int | str):
        return content
    if isinstance(content, float):
        return content if math.isfinite(content) else str(content)
    if isinstance(content, np.generic):
        return to_jsonable(content.item())
    if isinstance(content, Certificate | Result):
        return content.to_dict()
    if isinstance(content, Mapping):
        return {str(key): to_jsonable(item) for key, item in content.items()}
    if isinstance(content, list | tuple | set | frozenset):
        return [to_jsonable(item) for item in content]
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        return {f.name: to_jsonable(getattr(content, f.name)) for f in dataclasses.fields(content)}
    if hasattr(content, "tocoo"):
        triplets = content.tocoo()
        return {
            "shape": list(triplets.shape),
            "row": triplets.row.tolist(),
            "column": triplets.col.tolist(),
            "value": to_jsonable(triplets.data),
        }
    if isinstance(content, np.ndarray) and content.dtype.names:
        return {name: to_jsonable(content[name]) for name in content.dtype.names}
    if hasattr(content, "tolist"):  # numpy arrays and torch tensors, on any device
        return to_jsonable(content.tolist())
    return str(content)


def _own_fields_first(result: Result) -> list[dataclasses.Field]:
    shared = ("certificates", "history")
    fields = {f.name: f for f in dataclasses.fields(result)}
    return [f for name, f in fields.items() if name not in shared] + [fields[name] for name in shared]


def _brief(content: Any) -> str:
    """Representation of at most about one line."""
    shape = getattr(content, "shape", None)
    if shape and np.prod(shape) > 6:
        kind = type(content).__name__ if type(content) is not np.ndarray else "array"
        dtype = f", {content.dtype}" if hasattr(content, "dtype") else ""  # which a data frame has not
        return f"<{kind} of shape {tuple(shape)}{dtype}>"
    text = " ".join(repr(content).split())
    return text if len(text) <= 100 else text[:97] + "..."
