"""You have a game or a saddle point: solvers that say how far from equilibrium they stopped."""

from assay.games.matrix_game import MatrixGameResult, duality_gap, project_simplex
from assay.games.regret_matching import prm_plus
from assay.games.semismooth_newton import drs_residual, lift, newton_step, residual_gap_bound
from assay.games.ssn import solve_matrix_game

__all__ = [
    "MatrixGameResult",
    "drs_residual",
    "duality_gap",
    "lift",
    "newton_step",
    "prm_plus",
    "project_simplex",
    "residual_gap_bound",
    "solve_matrix_game",
]
