"""Claims against numbers: promised, measured, holds."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from assay.certificate import side_by_side
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
    n_failed : int, default=0
        How many cells of the contenders in question failed, so that their numbers are missing. A claim about all
        runs cannot hold then.
    """

    study: str
    size: str
    claim: Claim
    measured: float
    lowest: float
    highest: float
    n: int
    n_failed: int = 0

    @property
    def holds(self) -> bool:
        """Whether every cell gave its numbers and they are on the promised side; nan never is."""
        return self.n_failed == 0 and self._on_promised_side

    @property
    def _on_promised_side(self) -> bool:
        if self.claim.relation == "<=":
            return self.measured <= self.claim.number
        return self.measured >= self.claim.number

    @property
    def outcome(self) -> str:
        """``"holds"``, ``"not reproduced"``, or ``"not measured"`` when cells that should decide it gave no number."""
        if self.n == 0 or (self.n_failed and self._on_promised_side):
            return "not measured"
        return "holds" if self.holds else "not reproduced"

    @property
    def shown(self) -> tuple[str, str]:
        """What was promised, with its relation, and what was measured, with digits enough to tell them apart."""
        measured, number = side_by_side(self.measured, self.claim.number, digits=4)
        return f"{self.claim.relation} {number}", measured


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
    failed = table.cells[table.cells["status"] != "done"]
    n_failed = int(failed["contender"].isin([claim.contender, claim.versus]).sum())
    if claim.versus is not None:
        keys = ["seed", "case"]
        paired = numbers.merge(_scalars(table, claim, claim.versus), on=keys, suffixes=("", "_versus"))
        if claim.compare == "ratio":
            # A negative number, and -0.0, would turn the order around.
            divisors = paired["value_versus"] + 0.0
            values = paired["value"] / divisors.where(divisors >= 0)
        else:
            values = paired["value"] - paired["value_versus"]
    else:
        values = numbers["value"]
    n = len(values)
    if n == 0:
        return Verdict(table.study, table.size, claim, math.nan, math.nan, math.nan, 0, n_failed)
    # skipna=False: a contender that gave nan in one case did not fulfil a promise made for all of them.
    measured = float(getattr(values, claim.reduce)(skipna=False))
    return Verdict(table.study, table.size, claim, measured, float(values.min()), float(values.max()), n, n_failed)


def _scalars(table: Table, claim: Claim, contender: str) -> pd.DataFrame:
    rows = table.scalars
    chosen = rows[(rows["metric"] == claim.metric) & (rows["contender"] == contender)]
    # The name of a case may have brackets in it, which a pattern gives another meaning.
    matching = [case == claim.case or fnmatch.fnmatchcase(case, claim.case) for case in chosen["case"]]
    return chosen[np.array(matching, dtype=bool)]
