"""All that is known of one study at one size, as data frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from assay.lab.cell import CellRecord
from assay.lab.provenance import code_hash
from assay.lab.store import Store
from assay.lab.study import Study

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """Results of one study at one size.

    Parameters
    ----------
    study : str
        Name of the study.
    size : str
        The size.
    scalars : pandas.DataFrame
        One row per number: ``contender, seed, case, metric, value``.
    curves : pandas.DataFrame
        One row per line: ``contender, seed, case, name, x, y, x_label, y_label, x_log, y_log``, where ``x`` and
        ``y`` are arrays.
    certificates : pandas.DataFrame
        One row per certificate: ``contender, seed, case, certificate, holds``.
    cells : pandas.DataFrame
        One row per cell: ``contender, seed, status, seconds, reason, message``.
    n_stale : int
        Cells that were left out since the code has changed.
    records : tuple of CellRecord
        The cells as they are stored, with their environments.
    """

    study: str
    size: str
    scalars: pd.DataFrame
    curves: pd.DataFrame
    certificates: pd.DataFrame
    cells: pd.DataFrame
    n_stale: int = 0
    records: tuple[CellRecord, ...] = ()

    @classmethod
    def load(cls, store: Store, study: type[Study], size: str, seeds: Iterable[int] | None = None) -> Table:
        """Read a study from a store: the cells of its contenders that today's code has made.

        Parameters
        ----------
        store : Store
            Where to read.
        study : type
            The study class.
        size : str
            The size.
        seeds : iterable of int, optional
            Only these seeds.
        """
        code, names = code_hash(study), {c.name for c in study.contenders}
        wanted = None if seeds is None else set(seeds)
        records = [
            r
            for r in store.records(study.name, size)
            if r.cell.contender in names and (wanted is None or r.cell.seed in wanted)
        ]
        current = [r for r in records if r.code == code]
        return cls.of(study, size, current, n_stale=len(records) - len(current))

    @classmethod
    def of(cls, study: type[Study], size: str, records: Iterable[CellRecord], n_stale: int = 0) -> Table:
        """Make the frames from records, ordered as the study orders its contenders."""
        order = {contender.name: index for index, contender in enumerate(study.contenders)}
        ordered = sorted(records, key=lambda r: (order.get(r.cell.contender, len(order)), r.cell.seed))
        scalars, curves, certificates, cells = [], [], [], []
        for record in ordered:
            key = (record.cell.contender, record.cell.seed)
            cells.append((*key, record.status, record.seconds, record.reason, record.message))
            scalars += [(*key, s.case, s.metric, s.value) for s in record.measurement.scalars]
            curves += [
                (*key, c.case, c.name, c.x, c.y, c.x_label, c.y_label, c.x_log, c.y_log)
                for c in record.measurement.curves
            ]
            certificates += [(*key, case, c, c.holds) for case, c in record.measurement.certificates]
        of_curves = ["name", "x", "y", "x_label", "y_label", "x_log", "y_log"]
        return cls(
            study.name,
            size,
            pd.DataFrame(scalars, columns=["contender", "seed", "case", "metric", "value"]),
            pd.DataFrame(curves, columns=["contender", "seed", "case", *of_curves]),
            pd.DataFrame(certificates, columns=["contender", "seed", "case", "certificate", "holds"]),
            pd.DataFrame(cells, columns=["contender", "seed", "status", "seconds", "reason", "message"]),
            n_stale,
            tuple(ordered),
        )
