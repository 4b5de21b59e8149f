"""Faces of cones, polishing and the ghost problem, each against differences of the problem itself."""

import numpy as np
import pytest
import scipy.sparse as sp

from assay.bilevel.ffo_cone_solvers import solve_cone_program
from assay.bilevel.ffo_cones import Block, ConeProgram, matrix_of, program_residual, vector_of
from assay.bilevel.ffo_faces import (
    ActiveRule,
    ExponentialFace,
    SecondOrderFace,
    SemidefiniteFace,
    find_faces,
)
from assay.bilevel.ffo_ghost import Ghost, NotUniqueError, dense_move
from assay.bilevel.ffo_polish import polished
from assay.bilevel.qp_ghost import EqualitySystem, QuadraticForm, first_order_move
from assay.bilevel.qp_rows import UnitRows

pytest.importorskip("clarabel")
RULE = ActiveRule()


def program(seed=0, weight=5.0):
    """All kinds of cones at once."""
    rng = np.random.default_rng(seed)
    inside = [np.zeros(2), [0.1, 0.2, 0.3], [1, 0.1, 0.2, 0.3], vector_of(np.eye(3)), [0.1, 1, 2.0]]
    blocks, start = [], 0
    for kind, part in zip(("zero", "nonneg", "soc", "psd", "exp"), inside, strict=True):
        blocks.append(Block(kind, start, start + len(part)))
        start += len(part)
    A, point = rng.normal(size=(start, 8)), rng.normal(size=8)
    return ConeProgram(
        sp.csc_array(np.eye(8)), weight * rng.normal(size=8), sp.csr_array(A), A @ point + np.concatenate(inside),
        tuple(blocks),
    )  # fmt: skip


def solved(instance):
    found = solve_cone_program(instance, "CLARABEL", {}, 0)
    rough = Ghost(
        instance, found.point, found.dual, find_faces(instance, instance.slack(found.point), found.dual, RULE)
    )
    return rough, polished(rough, RULE)


def test_triangles():
    matrix = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    vector = vector_of(matrix)
    np.testing.assert_allclose(vector, [1, 2 * 2**0.5, 4, 3 * 2**0.5, 5 * 2**0.5, 6])
    np.testing.assert_allclose(matrix_of(vector), matrix)
    assert vector @ vector == pytest.approx(np.sum(matrix**2))


@pytest.mark.parametrize("kind", ["second-order", "exponential", "matrix", "zero matrix"])
def test_derivatives_of_faces(kind):
    rng = np.random.default_rng(1)
    if kind == "second-order":
        face, slack, multiplier = SecondOrderFace(slice(0, 4)), np.array([1.2, 0.3, -0.4, 0.9]), np.array([0.7])
    elif kind == "exponential":
        face, slack, multiplier = ExponentialFace(slice(0, 3)), np.array([0.3, 1.4, 1.7]), np.array([0.7])
    else:
        vectors = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        k = 2 if kind == "matrix" else 4
        face = SemidefiniteFace(slice(0, 10), vectors[:, :k], vectors[:, k:])
        slack = vector_of(vectors[:, k:] @ np.diag([1.0, 2.0])[: 4 - k, : 4 - k] @ vectors[:, k:].T)
        slack = slack + 0.05 * vector_of(np.cov(rng.normal(size=(4, 9))))
        multiplier = vector_of(np.cov(rng.normal(size=(k, 9))))
    step = 1e-6
    units = step * np.eye(slack.size)
    slope = np.array([(face.value(slack + u) - face.value(slack - u)) / (2 * step) for u in units]).T
    np.testing.assert_allclose(face.tangent(slack), -slope, atol=1e-8)
    np.testing.assert_allclose(face.dual(slack, multiplier), face.tangent(slack).T @ multiplier, atol=1e-12)
    turn = np.array([(face.dual(slack + u, multiplier) - face.dual(slack - u, multiplier)) / (2 * step) for u in units])
    curvature = face.curvature(slack, multiplier)
    moved = 0.1 * rng.normal(size=slack.size)
    expected = face.dual(slack + moved, multiplier) - face.dual(slack, multiplier)
    np.testing.assert_allclose(face.turn(slack, moved, multiplier), expected, atol=1e-13)
    np.testing.assert_allclose(
        face.turn(slack, 1e-14 * moved, multiplier), -1e-14 * curvature @ moved, rtol=1e-9, atol=1e-27
    )
    np.testing.assert_allclose(curvature, -turn.T, atol=1e-8)
    np.testing.assert_allclose(curvature, curvature.T, atol=1e-12)
    assert np.linalg.eigvalsh(curvature)[0] > -1e-12
    assert face.size == len(face.value(slack))


@pytest.mark.parametrize("seed", [0, 2, 3, 7])
def test_polishing(seed):
    rough, fine = solved(program(seed))
    assert max(program_residual(fine.program, fine.point, fine.dual)) < 1e-14
    assert max(program_residual(rough.program, rough.point, rough.dual)) > 1e-12
    for face, multiplier in zip(fine.faces.curved, fine.frozen, strict=True):
        np.testing.assert_allclose(face.dual(fine.slack[face.rows], multiplier), fine.dual[face.rows], atol=1e-10)
    wrong = Ghost(rough.program, rough.point, rough.dual, find_faces(rough.program, rough.slack, 0 * rough.dual, RULE))
    assert polished(wrong, RULE, exchanges=0) is None  # without its active constraints
    found = polished(wrong, RULE)
    assert found is None or np.abs(found.point - fine.point).max() < 1e-10  # it may find them


@pytest.mark.parametrize("seed", [0, 2])
def test_moves_against_the_problem_itself(seed):
    """The derivative of primal and dual by a linear term, from neighbouring solutions."""
    _, fine = solved(program(seed))
    assert len(fine.faces.curved) == {0: 3, 2: 2}[seed]  # the second is on the flat side of the exponential cone
    direction = np.random.default_rng(4).normal(size=8)
    exact, step = dense_move(fine, direction), 1e-5
    ahead, behind = (solved(program(seed).tilted(sign * step * direction))[1] for sign in (1, -1))
    np.testing.assert_allclose((ahead.point - behind.point) / (2 * step), exact.step, atol=1e-8)
    np.testing.assert_allclose((ahead.dual - behind.dual) / (2 * step), exact.multipliers + exact.turn, atol=1e-8)
    errors = []
    for delta in (0.1, 0.05):
        moves = fine.moves(direction, delta, (1.0, -1.0))
        assert [move.delta for move in moves] == [delta, -delta]
        one = np.abs(moves[0].step / delta - exact.step).max()
        mean = 0.5 * (moves[0].step - moves[1].step) / delta
        errors.append((one, np.abs(mean - exact.step).max()))
        np.testing.assert_allclose(fine.equations(fine.slack) @ moves[0].step, 0.0, atol=1e-12)
    assert errors[0][0] / errors[1][0] == pytest.approx(2.0, rel=0.1)
    assert errors[0][1] / errors[1][1] == pytest.approx(4.0, rel=0.1)


def test_far_perturbations_are_shortened():
    _, fine = solved(program())
    direction = np.random.default_rng(4).normal(size=8)
    moves = fine.moves(direction, 50.0, (1.0, -1.0))
    assert 0 < moves[0].delta == -moves[1].delta < 50.0
    exact = dense_move(fine, direction).step
    for move in moves:
        assert np.abs(move.step / move.delta - exact).max() < 0.1 * np.abs(exact).max()


def test_small_perturbations_lose_no_digits():
    """Changes of dual vectors are computed without cancellation."""
    _, fine = solved(program())
    direction = np.random.default_rng(4).normal(size=8)
    exact = dense_move(fine, direction)
    (move,) = fine.moves(direction, 1e-12)
    np.testing.assert_allclose(move.step / move.delta, exact.step, atol=1e-10)
    np.testing.assert_allclose((move.multipliers + move.turn) / move.delta, exact.multipliers + exact.turn, atol=1e-10)


def test_active_rule():
    slack, dual = np.array([1e-6, 1e-9, 1e-9, 1.0]), np.array([1.0, 1.0, 1e-5, 0.0])
    assert RULE.active(slack, dual).tolist() == [True, True, True, False]
    assert ActiveRule("threshold").active(slack, dual).tolist() == [False, True, False, False]


def test_directions_without_a_unique_minimiser():
    instance = ConeProgram(
        sp.csc_array((2, 2)), np.array([1.0, 0.0]), sp.csr_array(-np.eye(2)), np.zeros(2), (Block("nonneg", 0, 2),)
    )
    dual = np.array([1.0, 0.0])
    ghost = Ghost(instance, np.array([0.0, 1.0]), dual, find_faces(instance, np.array([0.0, 1.0]), dual, RULE))
    assert ghost.moves(np.array([1.0, 0.0]), 0.1)[0].step == pytest.approx([0.0, 0.0])
    with pytest.raises(NotUniqueError):
        ghost.moves(np.array([0.0, 1.0]), 0.1)


def test_residuals_see_every_violation():
    _, fine = solved(program())
    clean = fine.point, fine.dual
    assert max(program_residual(fine.program, *clean)) < 1e-12
    for row in range(fine.dual.size):
        spoilt = fine.dual.copy()
        spoilt[row] -= 1e-3
        assert max(program_residual(fine.program, fine.point, spoilt)) > 1e-7
    for column in range(8):
        spoilt = fine.point.copy()
        spoilt[column] += 1e-3
        assert max(program_residual(fine.program, spoilt, fine.dual)) > 1e-7


@pytest.mark.parametrize("kind", ["dense", "diagonal", "singular"])
@pytest.mark.parametrize("repeated", [False, True])
def test_equality_system_against_the_big_system(kind, repeated):
    rng = np.random.default_rng(2)
    n = 9
    root = rng.normal(size=(n, n if kind == "dense" else 6))
    Q = np.diag(rng.random(n) + 0.1) if kind == "diagonal" else root @ root.T
    rows = np.vstack([np.eye(n)[[1, 4]], 2.0 * np.eye(n)[[6]], rng.normal(size=(3, n)), rng.normal(size=(2, n))])
    picked = np.array([0, 1, 2, 3, 4, 5])
    if repeated:
        rows[7] = rows[3] + rows[4]
        picked = np.append(picked, 7)
    linear, target = rng.normal(size=n), UnitRows.of(rows).take(picked) @ rng.normal(size=n)
    form = QuadraticForm(Q, 1e-8)
    np.testing.assert_allclose(form.scale * form.matrix, Q, atol=1e-14)
    Q, system = form.matrix, EqualitySystem(form, UnitRows.of(rows), picked)
    assert system.unique
    point, multipliers = system.solve(linear, target)
    E = UnitRows.of(rows).take(picked)
    np.testing.assert_allclose(Q @ point + linear + E.T @ multipliers, 0.0, atol=1e-10)
    np.testing.assert_allclose(E @ point, target, atol=1e-10)
    other, _, steps, residual = first_order_move(form, E, linear, 1e-11, 20_000)
    np.testing.assert_allclose(other, system.solve(linear)[0], atol=1e-7)
    assert steps > 5
    assert residual <= 1e-11


def test_quadratic_forms():
    assert QuadraticForm(np.diag([1.0, 2.0]), 1e-8).is_diagonal
    assert not QuadraticForm(np.array([[2.0, 1.0], [1.0, 2.0]]), 1e-8).is_diagonal
    assert QuadraticForm(np.zeros((3, 3)), 1e-8).shifted
    assert QuadraticForm(np.ones((3, 3)), 1e-8).shifted
    with pytest.raises(ValueError, match="smallest eigenvalue of -1"):
        QuadraticForm(np.array([[1.0, 2.0], [2.0, 1.0]]), 1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_norm_one(sparse):
    """Whatever their size, and the same if sparse."""
    matrix = np.zeros((4, 200 if sparse else 2))
    matrix[:, :2] = [[0.0, 3.0], [1e300, 1e300], [0.0, 0.0], [0.0, -1e-300]]
    rows = UnitRows.of(matrix)
    assert sp.issparse(rows.matrix) == sparse
    unit = rows.take(None)[:, :2]
    np.testing.assert_allclose(unit, [[0.0, 1.0], [0.5**0.5, 0.5**0.5], [0.0, 0.0], [0.0, -1.0]])
    np.testing.assert_allclose(rows.norms, [3.0, 2**0.5 * 1e300, 1.0, 1e-300])
    assert rows.single_columns.tolist() == [1, -1, -1, 1]
    assert rows.single_values[[0, 3]].tolist() == [1.0, -1.0]
    both = rows.above(rows)
    assert len(both) == 8
    np.testing.assert_allclose(both.take(np.array([5])), rows.take(np.array([1])))
    points = np.random.default_rng(0).normal(size=(3, matrix.shape[1]))
    np.testing.assert_allclose(both.times(points), points @ both.take(None).T)
    np.testing.assert_allclose(rows.adjoint(np.ones((2, 4))), np.ones((2, 4)) @ rows.take(None), atol=1e-15)
