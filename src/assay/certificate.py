"""The one noun that every method shares: a promise, evaluated on the user's own run.

A method promises an inequality: the duality gap is at most ``tol``, the spectral norm of every update is at
most the clipping threshold, the tour costs at most ``c(T) + 2 eta(T)``. A :class:`Certificate` is that
inequality with both sides evaluated on one answer, together with the assumptions under which the method
promises it. It is computed from the answer, independently of what the solver recorded about itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat

__all__ = ["Assumption", "Certificate", "CertificateError", "side_by_side"]

Relation = Literal["<=", ">="]


class CertificateError(Exception):
    """A certificate that was required does not hold, or one of its assumptions is violated.

    Attributes
    ----------
    certificate : Certificate
        The certificate in question.
    """

    def __init__(self, certificate: Certificate):
        super().__init__(str(certificate))
        self.certificate = certificate

    def __reduce__(self) -> tuple[type[CertificateError], tuple[Certificate]]:
        return type(self), (self.certificate,)


@dataclass(frozen=True)
class Assumption:
    """A condition under which a promise is made.

    Parameters
    ----------
    statement : str
        The condition, in words, e.g. ``"the costs satisfy the triangle inequality"``.
    satisfied : bool or None, default=None
        True or False when the condition could be checked on the data, None when it could not.

    Examples
    --------
    >>> from assay import Assumption
    >>> str(Assumption("the costs satisfy the triangle inequality", True))
    'the costs satisfy the triangle inequality (checked)'
    """

    statement: str
    satisfied: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.statement, str) or not self.statement.strip():
            raise TypeError(f"statement must be a non-empty string, got {self.statement!r}")
        if self.satisfied is not None:
            # numpy.bool_ is not a bool, but it is what comparisons of arrays give.
            if type(self.satisfied).__name__ not in ("bool", "bool_"):
                raise TypeError(f"satisfied must be True, False or None, got {self.satisfied!r}")
            object.__setattr__(self, "satisfied", bool(self.satisfied))

    def __str__(self) -> str:
        status = {True: "checked", False: "VIOLATED", None: "not checked"}[self.satisfied]
        return f"{self.statement} ({status})"


@dataclass(frozen=True)
class Certificate:
    r"""A promise and its evaluation on one answer: ``value relation bound``.

    Parameters
    ----------
    statement : str
        What is promised, in words, e.g. ``"duality gap of the returned strategies"``.
    value : float
        What was measured on the answer.
    bound : float
        What was promised.
    relation : {"<=", ">="}, default="<="
        How the two must compare for the promise to hold.
    assumptions : sequence of Assumption, default=()
        The conditions under which the method makes this promise.

    Attributes
    ----------
    holds : bool
        Whether ``value relation bound``. A nan on either side never holds.
    slack : float
        Distance to the bound; ``slack >= 0`` exactly when the certificate holds.
    violated : tuple of Assumption
        The assumptions that were checked and found false. The inequality may still hold, but then the
        method does not promise that it will.

    Raises
    ------
    TypeError
        If ``value`` or ``bound`` is not a real number, or ``assumptions`` has something else in it.
    ValueError
        If ``relation`` is unknown.

    Examples
    --------
    >>> from assay import Assumption, Certificate
    >>> gap = Certificate("duality gap of the returned strategies", value=3.1e-11, bound=1e-10)
    >>> gap.holds
    True
    >>> print(gap)
    holds: duality gap of the returned strategies: 3.1e-11 <= 1e-10
    >>> Certificate.from_json(gap.to_json()) == gap
    True
    >>> tour = Certificate("cost against the reference tour", 105.0, 100.0)
    >>> tour.require()
    Traceback (most recent call last):
        ...
    assay.certificate.CertificateError: FAILS: cost against the reference tour: 105 <= 100
    """

    statement: str
    value: float
    bound: float
    relation: Relation = "<="
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.statement, str) or not self.statement.strip():
            raise TypeError(f"statement must be a non-empty string, got {self.statement!r}")
        if self.relation not in ("<=", ">="):
            raise ValueError(f"relation must be '<=' or '>=', got {self.relation!r}")
        object.__setattr__(self, "value", _real("value", self.value))
        object.__setattr__(self, "bound", _real("bound", self.bound))
        assumptions = tuple(self.assumptions)
        for assumption in assumptions:
            if not isinstance(assumption, Assumption):
                raise TypeError(f"assumptions must contain Assumption objects, got {assumption!r}")
        object.__setattr__(self, "assumptions", assumptions)

    def __eq__(self, other: object) -> bool:
        # Two certificates with the same nan are the same certificate, which the comparison of floats denies.
        if not isinstance(other, Certificate):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.statement, _json_float(self.value), _json_float(self.bound), self.relation, self.assumptions

    @property
    def holds(self) -> bool:
        """Whether the measured value is on the promised side of the bound."""
        return self.value <= self.bound if self.relation == "<=" else self.value >= self.bound

    @property
    def slack(self) -> float:
        """Distance to the bound: non-negative exactly when the certificate holds, nan if a side is nan."""
        if self.value == self.bound:  # inf - inf would be nan
            return 0.0
        return self.bound - self.value if self.relation == "<=" else self.value - self.bound

    @property
    def violated(self) -> tuple[Assumption, ...]:
        """Assumptions that were checked on the data and are false."""
        return tuple(a for a in self.assumptions if a.satisfied is False)

    def require(self) -> Certificate:
        """Return the certificate itself if it can be relied on.

        Raises
        ------
        CertificateError
            If the certificate does not hold or an assumption is violated.
        """
        if not self.holds or self.violated:
            raise CertificateError(self)
        return self

    def __str__(self) -> str:
        value, bound = side_by_side(self.value, self.bound)
        line = f"{'holds' if self.holds else 'FAILS'}: {self.statement}: {value} {self.relation} {bound}"
        if self.assumptions:
            line += " [if " + "; ".join(str(a) for a in self.assumptions) + "]"
        return " ".join(line.split())

    def to_dict(self) -> dict[str, Any]:
        """Content as JSON-ready types; nan and infinities become the strings ``"nan"``, ``"inf"``, ``"-inf"``."""
        return {
            "statement": self.statement,
            "value": _json_float(self.value),
            "bound": _json_float(self.bound),
            "relation": self.relation,
            "assumptions": [{"statement": a.statement, "satisfied": a.satisfied} for a in self.assumptions],
            "holds": self.holds,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Certificate:
        """Inverse of :meth:`to_dict`; ``holds`` is evaluated anew, never read.

        Raises
        ------
        ValueError
            If a key is missing.
        """
        missing = [key for key in ("statement", "value", "bound", "relation", "assumptions") if key not in content]
        if missing:
            raise ValueError(f"content must be what Certificate.to_dict returns, got no {', '.join(missing)}")
        return cls(
            statement=content["statement"],
            value=float(content["value"]),
            bound=float(content["bound"]),
            relation=content["relation"],
            assumptions=tuple(Assumption(a["statement"], a["satisfied"]) for a in content["assumptions"]),
        )

    def to_json(self) -> str:
        """Content as one line of strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Inverse of :meth:`to_json`."""
        return cls.from_dict(json.loads(text))


def side_by_side(value: float, bound: float, digits: int = 6) -> tuple[str, str]:
    """Write two numbers with ``digits`` digits, or with as many more as it takes to tell them apart.

    Parameters
    ----------
    value, bound : float
        What is compared.
    digits : int, default=6
        Significant digits.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from assay.certificate import side_by_side
    >>> side_by_side(0.1234567, 1), side_by_side(1 + 1e-9, 1)
    (('0.123457', '1'), ('1.000000001', '1'))
    """
    texts = f"{value:.{digits}g}", f"{bound:.{digits}g}"
    if texts[0] != texts[1] or not abs(value - bound) > 0 or digits >= 17:
        return texts
    return side_by_side(value, bound, digits + 1)


def _real(name: str, number: SupportsFloat) -> float:
    """``number`` as a float; a numpy scalar or a 0-d array or tensor will do, a string or a vector will not."""
    if isinstance(number, str | bytes) or getattr(number, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a real number, got {number!r}")
    if "complex" in str(getattr(number, "dtype", "")):  # of which float() takes the real part
        raise TypeError(f"{name} must be a real number, got {number!r}")
    if hasattr(number, "detach"):  # torch warns about a number that gradients flow through
        number = number.detach()
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf  # type: ignore[operator]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a real number, got {number!r}") from error


def _json_float(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)
