"""Claims against numbers: promised, measured, holds."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from assay.lab.study import Claim, Study
from assay.lab.table import Table

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """A claim and what was measured.

    Parameters
    ----------
    study, size : str
        Where it was measured.
    claim : Claim
        What was promised.
    measured : float
        The one number that the claim is decided by; nan when there is none.
    lowest, highest : float
        Range over seeds and cases.
    n : int
        How many numbers it was reduced from.
    """

    study: str
    size: str
    claim: Claim
    measured: float
    lowest: float
    highest: float
    n: int

    @property
    def holds(self) -> bool:
        """Whether the measured number is on the promised side; nan never is."""
        if self.claim.relation == "<=":
            return self.measured <= self.claim.number
        return self.measured >= self.claim.number

    @property
    def outcome(self) -> str:
        """``"holds"``, ``"not reproduced"``, or ``"not measured"`` when no cell gave the number."""
        if math.isnan(self.measured) and self.n == 0:
            return "not measured"
        return "holds" if self.holds else "not reproduced"

    @property
    def promised(self) -> str:
        """Relation and number, e.g. ``">= 10"``."""
        return f"{self.claim.relation} {self.claim.number:.4g}"


def judge(study: type[Study], table: Table) -> list[Verdict]:
    """Evaluate the claims of a study that are made at the size of the table.

    Parameters
    ----------
    study : type
        The study class.
    table : Table
        Its results.

    Returns
    -------
    list of Verdict
        In the order in which the study declares its claims.
    """
    return [_judge_one(claim, table) for claim in study.claims if table.size in claim.sizes]


def _judge_one(claim: Claim, table: Table) -> Verdict:
    numbers = _scalars(table, claim, claim.contender)
    if claim.versus is not None:
        keys = ["seed", "case"]
        paired = numbers.merge(_scalars(table, claim, claim.versus), on=keys, suffixes=("", "_versus"))
        if claim.compare == "ratio":
            values = paired["value"] / paired["value_versus"]
        else:
            values = paired["value"] - paired["value_versus"]
    else:
        values = numbers["value"]
    n = len(values)
    if n == 0:
        return Verdict(table.study, table.size, claim, math.nan, math.nan, math.nan, 0)
    # skipna=False: a contender that gave nan in one case did not fulfil a promise made for all of them.
    measured = float(getattr(values, claim.reduce)(skipna=False))
    return Verdict(table.study, table.size, claim, measured, float(values.min()), float(values.max()), n)


def _scalars(table: Table, claim: Claim, contender: str) -> pd.DataFrame:
    rows = table.scalars
    chosen = rows[(rows["metric"] == claim.metric) & (rows["contender"] == contender)]
    matching = [fnmatch.fnmatchcase(case, claim.case) for case in chosen["case"]]
    return chosen[np.array(matching, dtype=bool)]
