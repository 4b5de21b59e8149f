"""From a parametrized cvxpy problem to cone programs, and from gradients of their data back to the parameters.

A disciplined parametrized problem is compiled once. After that every entry of a cone program is an affine function of
the parameters, given by sparse matrices, and every variable of the user's is a linear function of the point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from assay.bilevel.ffo_cones import Block, ConeProgram
from assay.bilevel.ffo_ghost import Move
from assay.extras import import_extra

__all__ = ["CompiledProblem", "DataGradient"]

_SYMMETRIC = ("symmetric", "PSD", "NSD")


@dataclass(frozen=True, eq=False)
class _Pattern:
    """A sparse matrix whose entries are affine in the parameters."""

    entries: sp.csr_array
    rows: Int[ndarray, " nnz"]
    columns: Int[ndarray, " nnz"]
    shape: tuple[int, int]

    @classmethod
    def of(cls, reduced: Any, shape: tuple[int, int], n_parameters: int) -> _Pattern:
        """Read what cvxpy has compiled."""
        reduced.cache()
        if reduced.matrix_data is None or reduced.problem_data_index is None:
            nothing = np.zeros(0, dtype=int)
            return cls(sp.csr_array((0, n_parameters)), nothing, nothing, shape)
        indices, pointers, _ = reduced.problem_data_index
        columns = np.repeat(np.arange(pointers.size - 1), np.diff(pointers))
        return cls(sp.csr_array(reduced.reduced_mat), np.asarray(indices, dtype=int), columns, shape)

    def matrix(self, parameters: Float[ndarray, " p"]) -> sp.csc_array:
        """The matrix."""
        return sp.csc_array((self.entries @ parameters, (self.rows, self.columns)), shape=self.shape)


@dataclass(frozen=True, eq=False)
class DataGradient:
    """Gradient with respect to the data of one cone program, at the entries that depend on parameters.

    Parameters
    ----------
    linear : numpy.ndarray of shape (N,)
        Of the linear term.
    left, right : numpy.ndarray of shape (M, r) and (r, N)
        The gradient of the matrix is their product, and is never formed.
    offset : numpy.ndarray of shape (M,)
        Of the right-hand side.
    quadratic_left, quadratic_right : numpy.ndarray of shape (N, r) and (r, N)
        The same for the quadratic form.
    """

    linear: Float[ndarray, " N"]
    left: Float[ndarray, "M r"]
    right: Float[ndarray, "r N"]
    offset: Float[ndarray, " M"]
    quadratic_left: Float[ndarray, "N r2"]
    quadratic_right: Float[ndarray, "r2 N"]

    @classmethod
    def of_move(cls, point: Float[ndarray, " N"], dual: Float[ndarray, " M"], move: Move) -> DataGradient:
        """The finite difference that a move of the ghost problem gives."""
        step, turn, multipliers = (part / move.delta for part in (move.step, move.turn, move.multipliers))
        shifted = point + move.step
        return cls(
            step,
            np.column_stack([turn, dual, multipliers]),
            np.stack([shifted, step, point]),
            -(turn + multipliers),
            0.5 * np.column_stack([step, shifted]),
            np.stack([point, step]),
        )

    @classmethod
    def of_flat_move(cls, point: Float[ndarray, " N"], dual: Float[ndarray, " M"], move: Move) -> DataGradient:
        """The mean of both sides when no face is curved: terms of second order cancel."""
        step, multipliers = move.step / move.delta, move.multipliers / move.delta
        return cls(
            step,
            np.column_stack([dual, multipliers]),
            np.stack([step, point]),
            -multipliers,
            step[:, None],
            point[None],
        )


class CompiledProblem:
    """A cvxpy problem as an affine map from parameters to cone programs.

    Parameters
    ----------
    problem : cvxpy.Problem
        Must satisfy the rules of disciplined parametrized programming.
    parameters, variables : sequence of cvxpy.Parameter and of cvxpy.Variable
        In the order in which tensors come in and go out.
    """

    def __init__(self, problem: Any, parameters: Any, variables: Any):
        cp = import_extra("cvxpy", extra="cvxpy")
        _check_problem(cp, problem, parameters, variables)
        data, chain, _ = problem.get_problem_data("CLARABEL", solver_opts={"use_quad_obj": True})
        program = data["param_prob"]
        dims = data["dims"]
        self.blocks = _blocks(dims)
        self.parameters, self.variables = tuple(parameters), tuple(variables)
        self.n_parameters = program.total_param_size + 1
        n_unknown, n_rows = program.x.size, data["A"].shape[0]
        self.matrix = _Pattern.of(program.reduced_A, (n_rows, n_unknown + 1), self.n_parameters)
        self.quadratic = _Pattern.of(program.reduced_P, (n_unknown, n_unknown), self.n_parameters)
        self.linear = sp.csr_array(program.q)[:n_unknown]
        self._places = _parameter_places(program, chain, self.parameters)
        self._recovery = _recovery(program, chain, self.variables)
        self.shapes = [tuple(variable.shape) for variable in self.variables]

    def stack(self, tensors: Sequence[Tensor], batch: int) -> Tensor:
        """Parameters as rows of the vectors that the affine maps take; gradients flow through it."""
        parts: list[Tensor | None] = [None] * len(self.parameters)
        for index, (tensor, parameter) in enumerate(zip(tensors, self.parameters, strict=True)):
            own = tensor.to(device="cpu", dtype=torch.float64)
            if own.ndim == len(parameter.shape):
                own = own.expand(batch, *own.shape)
            if any(parameter.attributes[name] for name in _SYMMETRIC):
                rows, columns = np.triu_indices(parameter.shape[-1])
                own = (0.5 * (own + own.mT))[:, rows, columns]
            elif parameter.attributes["diag"]:
                own = own.diagonal(dim1=-2, dim2=-1)
            else:
                own = own.permute(0, *range(own.ndim - 1, 0, -1)).reshape(batch, -1)
            parts[self._places[index]] = own
        return torch.cat([*parts, torch.ones(batch, 1, dtype=torch.float64, device="cpu")], dim=1)

    def program(self, parameters: Float[ndarray, " p"]) -> ConeProgram:
        """The cone program of one parameter vector."""
        matrix = self.matrix.matrix(parameters)
        return ConeProgram(
            self.quadratic.matrix(parameters),
            self.linear @ parameters,
            sp.csr_array(-matrix[:, :-1]),
            matrix[:, [-1]].toarray().ravel(),
            self.blocks,
        ).normalised()

    def recover(self, points: Float[ndarray, "B N"]) -> Float[ndarray, "B outputs"]:
        """The user's variables, each in rows."""
        return np.ascontiguousarray((self._recovery @ points.T).T)

    def upstream(self, gradient: Float[ndarray, " outputs"]) -> Float[ndarray, " N"]:
        """Gradient with respect to the point, from that with respect to the variables."""
        return self._recovery.T @ gradient

    def split(self, outputs: Tensor) -> list[Tensor]:
        """Rows as tensors in the shapes of the variables."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return [
            part.reshape(len(outputs), *shape)
            for part, shape in zip(outputs.split(sizes, dim=1), self.shapes, strict=True)
        ]

    def to_parameters(self, gradient: DataGradient) -> Float[ndarray, " p"]:
        """Chain rule through the affine maps."""
        rows, columns = self.matrix.rows, self.matrix.columns
        constant = columns == self.matrix.shape[1] - 1
        entries = np.empty(rows.size)
        entries[constant] = gradient.offset[rows[constant]]
        rows, columns = rows[~constant], columns[~constant]
        # cvxpy keeps the negative of the matrix
        entries[~constant] = -np.einsum("ir,ri->i", gradient.left[rows], gradient.right[:, columns])
        total = gradient.linear @ self.linear + entries @ self.matrix.entries
        if self.quadratic.rows.size:
            left, right = gradient.quadratic_left, gradient.quadratic_right
            form = np.einsum("ir,ri->i", left[self.quadratic.rows], right[:, self.quadratic.columns])
            form += np.einsum("ir,ri->i", left[self.quadratic.columns], right[:, self.quadratic.rows])
            total = total + 0.5 * form @ self.quadratic.entries
        return total


def _check_problem(cp: Any, problem: Any, parameters: Any, variables: Any) -> None:
    if not isinstance(problem, cp.Problem):
        raise TypeError(f"problem must be a cvxpy.Problem, got {type(problem).__name__}")
    for name, several, kind in (("parameters", parameters, cp.Parameter), ("variables", variables, cp.Variable)):
        if not isinstance(several, list | tuple):
            raise TypeError(f"{name} must be a list or tuple, got {type(several).__name__}")
        for one in several:
            if not isinstance(one, kind):
                raise TypeError(f"{name} must contain cvxpy.{kind.__name__} objects, got {type(one).__name__}")
        if not several or len({one.id for one in several}) < len(several):
            raise ValueError(f"{name} must be at least one and different, got {len(several)} of them")
    if not problem.is_dcp():
        raise ValueError("problem must be convex by the rules of disciplined programming (DCP)")
    if not problem.is_dpp():
        raise ValueError("problem must follow the rules of disciplined parametrized programming (DPP)")
    if problem.is_mixed_integer():
        raise ValueError("problem must not have integer or boolean variables")
    theirs, ours = {p.id for p in problem.parameters()}, {p.id for p in parameters}
    if theirs != ours:
        raise ValueError(
            f"parameters must be exactly those of the problem, got {len(ours - theirs)} that it has not "
            f"and {len(theirs - ours)} missing"
        )
    known = {variable.id for variable in problem.variables()}
    for variable in variables:
        if variable.id not in known:
            raise ValueError(f"variables must be primal variables of the problem, got {variable.name()!r}")
    for leaf in [*parameters, *variables]:
        for name in ("sparsity", "hermitian", "complex", "imag", "integer", "boolean"):
            if leaf.attributes.get(name):
                raise ValueError(f"{leaf.name()!r} must not have the attribute {name!r}")
        if len(leaf.shape) > 2:
            raise ValueError(f"{leaf.name()!r} must have at most two dimensions, got shape {leaf.shape}")


def _blocks(dims: Any) -> tuple[Block, ...]:
    if len(dims.p3d) or len(getattr(dims, "pnd", ())):
        raise ValueError("problem must not need power cones; cvxpy's approximations of powers use second-order cones")
    sizes = [("zero", dims.zero), ("nonneg", dims.nonneg), *(("soc", size) for size in dims.soc)]
    sizes += [("psd", side * (side + 1) // 2) for side in dims.psd] + [("exp", 3)] * dims.exp
    found, start = [], 0
    for kind, size in sizes:
        if size:
            found.append(Block(kind, start, start + int(size)))
            start += int(size)
    return tuple(found)


def _parameter_places(program: Any, chain: Any, parameters: Sequence[Any]) -> list[int]:
    """By parameter, its position in the order in which cvxpy stacks them."""
    ids = {before: after[0] for before, after in chain.compose_param_id_map().items()}
    columns = [program.param_id_to_col[ids.get(parameter.id, parameter.id)] for parameter in parameters]
    return [int(place) for place in np.argsort(np.argsort(columns))]


def _recovery(program: Any, chain: Any, variables: Sequence[Any]) -> sp.csr_array:
    """Linear map from the point to the variables, each by rows."""
    ids = {before: after[0] for before, after in chain.compose_var_id_map().items()}
    parts = []
    for variable in variables:
        start = program.var_id_to_col[ids.get(variable.id, variable.id)]
        shape = tuple(variable.shape)
        size = int(np.prod(shape))
        if any(variable.attributes[name] for name in _SYMMETRIC):
            rows, columns = np.triu_indices(shape[0])
            place = np.zeros(shape, dtype=int)
            place[rows, columns] = place[columns, rows] = np.arange(rows.size)
            kept, place = np.arange(size), place.ravel()
        elif variable.attributes["diag"]:
            kept, place = np.arange(shape[0]) * (shape[0] + 1), np.arange(shape[0])
        else:
            kept, place = np.arange(size), np.arange(size).reshape(shape, order="F").ravel()
        parts.append(sp.csr_array((np.ones(kept.size), (kept, start + place)), shape=(size, program.x.size)))
    return sp.csr_array(sp.vstack(parts))
