"""Travelling salesman instances in the format of TSPLIB, and two of them.

A file is a list of ``KEY: value`` lines and sections. What matters is ``EDGE_WEIGHT_TYPE``: it says how coordinates
become (rounded) distances, or that the distances themselves are listed, in one of several triangular layouts.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float

from assay.validation import check_choice, check_real

__all__ = ["TSPInstance", "load_tsplib", "read_tsplib"]

_SHIPPED = {"berlin52": 7542.0, "eil51": 426.0}
_PLANAR = ("EUC_2D", "CEIL_2D", "GEO", "ATT")
_LAYOUTS = ("FULL_MATRIX", "UPPER_ROW", "LOWER_ROW", "UPPER_DIAG_ROW", "LOWER_DIAG_ROW")
_MOST_CITIES = 100_000
_MOST_CITIES_WITH_MATRIX = 10_000
_EARTH_RADIUS = 6378.388


@dataclass(frozen=True, eq=False)
class TSPInstance:
    """A symmetric travelling salesman instance.

    Parameters
    ----------
    name : str
        As in the file.
    coords : numpy.ndarray of shape (n, 2) or None
        Coordinates; None if the file lists distances.
    kind : str
        The ``EDGE_WEIGHT_TYPE``.
    optimal : float or None
        Cost of an optimal tour, where it is known.
    explicit : numpy.ndarray of shape (n, n) or None
        The distances that the file lists.

    Examples
    --------
    >>> from assay.data.tsplib import load_tsplib
    >>> berlin = load_tsplib("berlin52")
    >>> berlin.n, berlin.distances()[0, 1], berlin.optimal
    (52, np.float64(666.0), 7542.0)
    """

    name: str
    coords: Float[np.ndarray, "cities 2"] | None
    kind: str
    optimal: float | None = None
    explicit: Float[np.ndarray, "cities cities"] | None = None

    def __post_init__(self) -> None:
        check_choice(self.kind, "kind", (*_PLANAR, "EXPLICIT"))
        if (self.coords is None) != (self.kind == "EXPLICIT") or (self.explicit is None) == (self.kind == "EXPLICIT"):
            raise ValueError("the kind EXPLICIT must come with explicit, every other one with coords")
        if self.optimal is not None:
            object.__setattr__(self, "optimal", check_real(self.optimal, "optimal", minimum=0))

    @property
    def n(self) -> int:
        """Number of cities."""
        return len(self.explicit if self.coords is None else self.coords)

    def distances(self) -> Float[np.ndarray, "cities cities"]:
        """Distances as the format defines them, rounding included.

        Returns
        -------
        numpy.ndarray of shape (n, n)
            A new array, symmetric, with a zero diagonal.

        Raises
        ------
        ValueError
            If squares of the distances are out of the range of floats.
        """
        if self.coords is None:
            return self.explicit.copy()
        if self.kind == "GEO":
            return _geographic(self.coords)
        with np.errstate(over="ignore"):
            squared = np.subtract.outer(self.coords[:, 0], self.coords[:, 0]) ** 2
            squared += np.subtract.outer(self.coords[:, 1], self.coords[:, 1]) ** 2
        if not np.all(np.isfinite(squared)):
            raise ValueError("coords must have distances with squares in the range of floats")
        if self.kind == "CEIL_2D":
            return np.ceil(np.sqrt(squared))
        if self.kind == "ATT":
            # Rounded up to the next integer whenever rounding to the nearest would go down.
            return np.ceil(np.sqrt(squared / 10.0))
        return np.floor(np.sqrt(squared) + 0.5)


def load_tsplib(name: str) -> TSPInstance:
    """One of the instances that come with this library, with the cost of its optimal tour.

    Parameters
    ----------
    name : {"berlin52", "eil51"}
        Its name in TSPLIB.

    Returns
    -------
    TSPInstance

    Raises
    ------
    ValueError
        If there is no such instance.

    References
    ----------
    G. Reinelt. TSPLIB - a traveling salesman problem library. ORSA Journal on Computing 3, 1991.

    Examples
    --------
    >>> from assay.data.tsplib import load_tsplib
    >>> load_tsplib("eil51").optimal
    426.0
    """
    check_choice(name, "name", _SHIPPED)
    text = (importlib.resources.files("assay.data") / "tsplib_instances" / f"{name}.tsp").read_text("ascii")
    instance = _parse(text, name)
    return TSPInstance(instance.name, instance.coords, instance.kind, _SHIPPED[name], instance.explicit)


def read_tsplib(path: str | PathLike[str], *, optimal: float | None = None) -> TSPInstance:
    r"""Read a symmetric instance in the format of TSPLIB.

    Parameters
    ----------
    path : path-like
        A file with ``EDGE_WEIGHT_TYPE`` EUC_2D, CEIL_2D, GEO, ATT, or EXPLICIT with ``EDGE_WEIGHT_FORMAT`` FULL_MATRIX,
        UPPER_ROW, LOWER_ROW, UPPER_DIAG_ROW or LOWER_DIAG_ROW.
    optimal : float, optional
        Cost of an optimal tour, which the format has no place for.

    Returns
    -------
    TSPInstance

    Raises
    ------
    OSError
        If the file cannot be read.
    TypeError, ValueError
        If it is not in the format, or of another type: the message names the file and the entry. If ``optimal`` is not
        a non-negative number.

    References
    ----------
    G. Reinelt. TSPLIB - a traveling salesman problem library. ORSA Journal on Computing 3, 1991.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from assay.data.tsplib import read_tsplib
    >>> lines = ["NAME: tiny", "TYPE: TSP", "DIMENSION: 3", "EDGE_WEIGHT_TYPE: EXPLICIT",
    ...          "EDGE_WEIGHT_FORMAT: UPPER_ROW", "EDGE_WEIGHT_SECTION", "3 4", "5", "EOF"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.tsp")
    ...     _ = path.write_text("\n".join(lines))
    ...     read_tsplib(path).distances()
    array([[0., 3., 4.],
           [3., 0., 5.],
           [4., 5., 0.]])
    """
    source = Path(path)
    instance = _parse(source.read_text(encoding="utf-8", errors="replace"), str(source))
    return TSPInstance(instance.name, instance.coords, instance.kind, optimal, instance.explicit)


def _parse(text: str, where: str) -> TSPInstance:
    keys: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    section: list[str] | None = None
    for line in map(str.strip, text.splitlines()):
        if not line:
            continue
        if line == "EOF":
            break
        word, _, value = line.partition(":")
        word = word.strip()
        if word.endswith("_SECTION"):
            section = sections.setdefault(word, [])
        elif word.replace("_", "").isalpha() and word.isupper():
            if keys.setdefault(word, value.strip()) != value.strip() and word != "COMMENT":
                raise ValueError(f"{where}: {word} is given twice, as {keys[word]!r} and as {value.strip()!r}")
            section = None
        elif section is not None:
            section.extend(line.split())
        else:
            raise ValueError(f"{where}: expected 'KEY: value' or a section, got {line[:60]!r}")
    if keys.get("TYPE", "TSP").split()[:1] != ["TSP"]:
        raise ValueError(f"{where}: TYPE must be TSP, got {keys['TYPE']!r}")
    kind = keys.get("EDGE_WEIGHT_TYPE", "")
    if kind not in (*_PLANAR, "EXPLICIT"):
        raise ValueError(f"{where}: EDGE_WEIGHT_TYPE must be one of {', '.join(_PLANAR)}, EXPLICIT, got {kind!r}")
    n = _dimension(keys, kind, where)
    name = keys.get("NAME", Path(where).stem)
    if kind == "EXPLICIT":
        return TSPInstance(name, None, kind, None, _explicit(keys, sections, n, where))
    return TSPInstance(name, _coordinates(sections, n, where), kind)


def _dimension(keys: dict[str, str], kind: str, where: str) -> int:
    try:
        n = int(keys.get("DIMENSION", ""))
    except ValueError:
        raise ValueError(f"{where}: DIMENSION must be an integer, got {keys.get('DIMENSION')!r}") from None
    limit = _MOST_CITIES_WITH_MATRIX if kind == "EXPLICIT" else _MOST_CITIES
    if not 1 <= n <= limit:
        raise ValueError(f"{where}: DIMENSION must be from 1 to {limit} for {kind}, got {n}")
    return n


def _numbers(words: list[str], count: int, section: str, where: str) -> Float[np.ndarray, " numbers"]:
    if len(words) != count:
        raise ValueError(f"{where}: {section} must have {count} numbers, got {len(words)}")
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError as error:
        raise ValueError(f"{where}: {section} must have numbers only: {error}") from None
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"{where}: {section} must have finite numbers only")
    return numbers


def _coordinates(sections: dict[str, list[str]], n: int, where: str) -> Float[np.ndarray, "cities 2"]:
    words = sections.get("NODE_COORD_SECTION", [])
    rows = _numbers(words, 3 * n, "NODE_COORD_SECTION", where).reshape(n, 3)
    if not np.array_equal(np.sort(rows[:, 0]), np.arange(1, n + 1)):
        raise ValueError(f"{where}: NODE_COORD_SECTION must number the cities from 1 to {n}")
    return np.ascontiguousarray(rows[np.argsort(rows[:, 0]), 1:])


def _explicit(
    keys: dict[str, str], sections: dict[str, list[str]], n: int, where: str
) -> Float[np.ndarray, "cities cities"]:
    layout = keys.get("EDGE_WEIGHT_FORMAT", "")
    if layout not in _LAYOUTS:
        raise ValueError(f"{where}: EDGE_WEIGHT_FORMAT must be one of {', '.join(_LAYOUTS)}, got {layout!r}")
    words = sections.get("EDGE_WEIGHT_SECTION", [])
    if layout == "FULL_MATRIX":
        matrix = _numbers(words, n * n, "EDGE_WEIGHT_SECTION", where).reshape(n, n)
        if not np.array_equal(matrix, matrix.T):
            raise ValueError(f"{where}: EDGE_WEIGHT_SECTION must be symmetric for TYPE TSP")
        np.fill_diagonal(matrix, 0.0)
        return matrix
    diagonal = 0 if "DIAG" in layout else 1
    row, column = np.triu_indices(n, diagonal) if layout.startswith("UPPER") else np.tril_indices(n, -diagonal)
    matrix = np.zeros((n, n))
    matrix[row, column] = _numbers(words, row.size, "EDGE_WEIGHT_SECTION", where)
    matrix[column, row] = matrix[row, column]
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _geographic(coords: np.ndarray) -> Float[np.ndarray, "cities cities"]:
    """Distances on the idealized sphere; the digits after the point of a coordinate are minutes."""
    degrees = np.trunc(coords)
    # The format fixes pi to these digits, and results depend on them.
    radians = 3.141592 * (degrees + 5.0 * (coords - degrees) / 3.0) / 180.0
    latitude, longitude = radians[:, 0], radians[:, 1]
    q1 = np.cos(longitude[:, None] - longitude[None, :])
    q2 = np.cos(latitude[:, None] - latitude[None, :])
    q3 = np.cos(latitude[:, None] + latitude[None, :])
    cosine = np.clip(0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3), -1.0, 1.0)
    matrix = np.floor(_EARTH_RADIUS * np.arccos(cosine) + 1.0)
    np.fill_diagonal(matrix, 0.0)
    return matrix
