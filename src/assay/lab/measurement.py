"""What one cell measured, and the random numbers that it may use.

This and the timing are all of the laboratory that a number can depend on; the rest declares, runs and shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from assay.certificate import Certificate

__all__ = ["Curve", "Measurement", "Scalar", "cell_rng"]


@dataclass(frozen=True)
class Scalar:
    """One measured number. ``case`` names the instance or setting it belongs to, ``""`` for the whole cell."""

    metric: str
    value: float
    case: str = ""


@dataclass(frozen=True, eq=False)
class Curve:
    """One measured line: what converged against what it cost."""

    name: str
    x: np.ndarray
    y: np.ndarray
    case: str = ""
    x_label: str = "iteration"
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False


@dataclass
class Measurement:
    """What one cell measured: scalars, curves and certificates, each of a case.

    Examples
    --------
    >>> from assay import Certificate
    >>> from assay.lab import Measurement
    >>> measurement = Measurement()
    >>> measurement.add("gap", 3e-11, case="uniform 50x100")
    >>> measurement.add_curve("gap", [1, 2, 3], [1e-1, 1e-4, 3e-11], y_label="duality gap", y_log=True)
    >>> measurement.certify(Certificate("duality gap", 3e-11, 1e-10), case="uniform 50x100")
    >>> len(measurement.scalars), len(measurement.curves), len(measurement.certificates)
    (1, 1, 1)
    """

    scalars: list[Scalar] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    certificates: list[tuple[str, Certificate]] = field(default_factory=list)
    _added: set[tuple[str, str]] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._added.update((scalar.metric, scalar.case) for scalar in self.scalars)

    def add(self, metric: str, value: float, case: str = "") -> None:
        """Add one number; a metric may be added once per case."""
        _check_words(metric=metric, case=case)
        if (metric, case) in self._added:
            raise ValueError(f"metric {metric!r} was already added for case {case!r}")
        self.scalars.append(Scalar(metric, float(value), case))
        self._added.add((metric, case))

    def add_curve(
        self,
        name: str,
        x: Sequence[float] | np.ndarray,
        y: Sequence[float] | np.ndarray,
        *,
        case: str = "",
        x_label: str = "iteration",
        y_label: str = "",
        x_log: bool = False,
        y_log: bool = False,
    ) -> None:
        """Add one line. Curves of one name are drawn in one figure; use labels with units."""
        _check_words(name=name, case=case, x_label=x_label, y_label=y_label)
        horizontal, vertical = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        if horizontal.ndim != 1 or horizontal.shape != vertical.shape:
            raise ValueError(f"x and y must be vectors of equal length, got {horizontal.shape} and {vertical.shape}")
        self.curves.append(Curve(name, horizontal, vertical, case, x_label, y_label or name, bool(x_log), bool(y_log)))

    def certify(self, certificates: Certificate | Iterable[Certificate], case: str = "") -> None:
        """Add the certificates of an answer."""
        _check_words(case=case)
        several = (certificates,) if isinstance(certificates, Certificate) else tuple(certificates)
        for certificate in several:
            if not isinstance(certificate, Certificate):
                raise TypeError(f"certificates must be Certificate objects, got {certificate!r}")
        self.certificates.extend((case, certificate) for certificate in several)


def cell_rng(*words: str, seed: int) -> np.random.Generator:
    """Generator that depends on some words and a seed, the same in every process."""
    # Python's own hash of a string differs between processes.
    return np.random.default_rng([zlib.crc32("\0".join(words).encode()), seed])


def _check_words(**arguments: object) -> None:
    # A number as the name of a case would be refused by the store, after the cell has been computed.
    for name, words in arguments.items():
        if not isinstance(words, str):
            raise TypeError(f"{name} must be a string, got {words!r}")
