"""The ways to fit a Rasch model that the study compares, each as a function of a table of responses."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["FAR", "Estimate", "complete_only", "fitters", "py_irt_is_there"]

# girth looks for estimates in this interval. Infinite ones of other methods are cut to it.
FAR = 6.0

Estimate = tuple[np.ndarray, np.ndarray]

complete_only = ("CML (girth)", "JML (girth)")


def fitters() -> dict[str, Callable[[np.ndarray], Estimate]]:
    """Functions from a table (users in rows, nan where missing) to difficulties and abilities."""
    return {
        "PG-EM": pg_em,
        "PG-EM, wide difficulties": lambda X: pg_em(X, v_beta=10.0),
        "PG-EM, moment": lambda X: pg_em(X, v_theta="moment"),
        "PG-EM, accelerated": lambda X: pg_em(X, accelerate=True),
        "PG-EM, coordinate": lambda X: pg_em(X, update="coordinate"),
        "JML": jml,
        "JML (girth)": girth_jml,
        "CML (girth)": girth_cml,
        "MML (girth)": girth_mml,
        "MML": mml,
        "spectral": spectral,
        "LogisticRegression": logistic_regression,
        "py-irt": py_irt,
    }


def pg_em(X: np.ndarray, **settings: Any) -> Estimate:
    """Ours."""
    from assay.supervised import fit_rasch

    fit = fit_rasch(X, **settings)
    return fit.difficulties, fit.abilities


def jml(X: np.ndarray) -> Estimate:
    """The same iteration without priors."""
    from assay.supervised import rasch_jml

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = rasch_jml(X)
    return _cut(fit.difficulties), _cut(fit.abilities)


def mml(X: np.ndarray) -> Estimate:
    """Marginal likelihood with 61 nodes."""
    from assay.supervised import rasch_mml

    fit = rasch_mml(X)
    return fit.difficulties, fit.abilities


def spectral(X: np.ndarray) -> Estimate:
    """The chain on the items, then one ability at a time."""
    from assay.supervised import spectral_rasch

    fit = spectral_rasch(X)
    return fit.difficulties, _cut(fit.abilities)


def girth_jml(X: np.ndarray) -> Estimate:
    """``rasch_jml`` of girth, which gives no abilities and scales them to unit variance on its way."""
    girth = _girth()
    difficulties = np.asarray(girth.rasch_jml(_transposed(X))["Difficulty"], dtype=float)
    return difficulties, _abilities(X, difficulties)


def girth_cml(X: np.ndarray) -> Estimate:
    """``rasch_conditional`` of girth."""
    girth = _girth()
    difficulties = np.asarray(girth.rasch_conditional(_transposed(X))["Difficulty"], dtype=float)
    return difficulties, _abilities(X, difficulties)


def girth_mml(X: np.ndarray) -> Estimate:
    """``onepl_mml`` of girth, with expected abilities."""
    girth = _girth()
    table = _transposed(X)
    answer = girth.onepl_mml(table)
    slope, difficulties = float(answer["Discrimination"]), np.asarray(answer["Difficulty"], dtype=float)
    abilities = girth.ability_eap(table, difficulties, np.full(len(difficulties), slope))
    # Its abilities have variance 1 and a common slope; the slope is the scale of abilities that have slope 1.
    return slope * difficulties, slope * np.asarray(abilities)


def logistic_regression(X: np.ndarray) -> Estimate:
    """scikit-learn, with an indicator for every user and, with a minus sign, for every item."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    n_users, n_items = X.shape
    users, items = np.nonzero(~np.isnan(X))
    every = np.arange(len(users))
    design = sparse.csr_array(
        (
            np.concatenate([np.ones(len(users)), -np.ones(len(users))]),
            (np.concatenate([every, every]), np.concatenate([users, n_users + items])),
        ),
        shape=(len(users), n_users + n_items),
    )
    model = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-9, max_iter=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(design, X[users, items].astype(int))
    weights = model.coef_[0]
    return weights[n_users:], weights[:n_users]


def py_irt_is_there() -> bool:
    """Whether py-irt is installed; its requirements exclude those of this library, so it often is not."""
    return importlib.util.find_spec("py_irt") is not None


def py_irt(X: np.ndarray) -> Estimate:
    """Variational inference of py-irt's one-parameter model with its default priors and settings."""
    import pandas as pd
    import torch
    from py_irt.config import IrtConfig
    from py_irt.dataset import Dataset
    from py_irt.training import IrtModelTrainer

    frame = pd.DataFrame(X, columns=[f"i{column}" for column in range(X.shape[1])])
    frame.insert(0, "who", [f"u{row}" for row in range(X.shape[0])])
    dataset = Dataset.from_pandas(frame, subject_column="who", item_columns=list(frame.columns[1:]))
    with torch.random.fork_rng(), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(0)
        trainer = IrtModelTrainer(
            data_path=None,
            config=IrtConfig(model_type="1pl", priors="hierarchical"),
            dataset=dataset,
            verbose=False,
        )
        trainer.train(device="cpu")
    found = trainer.last_params
    difficulties, abilities = np.empty(X.shape[1]), np.empty(X.shape[0])
    for position, name in found["item_ids"].items():
        difficulties[int(name[1:])] = found["diff"][position]
    for position, name in found["subject_ids"].items():
        abilities[int(name[1:])] = found["ability"][position]
    return difficulties, abilities


def _girth() -> Any:
    from assay.extras import import_extra

    return import_extra("girth", extra="peers")


def _transposed(X: np.ndarray) -> np.ndarray:
    """Items as rows, and girth's own mark for what is missing."""
    girth = _girth()
    table = np.where(np.isnan(X), -1, X).astype(int).T
    return girth.tag_missing_data(table, [0, 1]) if (table < 0).any() else table


def _abilities(X: np.ndarray, difficulties: np.ndarray) -> np.ndarray:
    from assay.supervised import rasch_abilities

    return _cut(rasch_abilities(X, difficulties, v_theta=math.inf)[0])


def _cut(values: np.ndarray) -> np.ndarray:
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=FAR, neginf=-FAR), -FAR, FAR)
