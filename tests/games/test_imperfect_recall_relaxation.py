"""Monomials, relaxations, solvers, and the check that makes multipliers a proof."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

from assay.games.imperfect_constraints import first_order_conditions, strategy_constraints
from assay.games.imperfect_polynomials import CompiledPolynomial, affine, multiply, scaled, total
from assay.games.imperfect_relaxation import PolynomialProblem
from assay.games.moment_basis import MonomialBasis, count_monomials, triangle
from assay.games.moment_extraction import candidate_points, extract_points
from assay.games.moment_problem import moment_problem
from assay.games.sos_program import (
    Multipliers,
    build_relaxation,
    check_identity,
    check_refutation,
    least_order,
    relaxation_size,
)
from assay.games.sos_scaling import ScaledBlock, ScaledSystem
from assay.games.sos_solvers import solve_conic
from assay.studies.games._imperfect_games import cycle


def box_problem(objective, blocks, ineqs=(), eqs=()):
    return PolynomialProblem(objective, (*strategy_constraints(blocks), *ineqs), tuple(eqs), tuple(blocks))


# ---------------------------------------------------------------------------------------------------- monomials


@pytest.mark.parametrize("blocks, degree", [((1, 1, 1), 3), ((2, 1), 4), ((3, 2, 2), 2), ((2,), 0)])
@pytest.mark.parametrize("vertex", [False, True])
def test_monomials_are_counted_and_listed_by_degree(blocks, degree, vertex):
    basis = MonomialBasis(blocks, degree, vertex)
    assert len(basis) == count_monomials(blocks, degree, vertex)
    degrees = basis.exponents.sum(axis=1)
    assert np.all(np.diff(degrees) >= 0)
    assert len({tuple(row) for row in basis.exponents.tolist()}) == len(basis)
    assert [basis.count(t) for t in range(degree + 1)] == [int(np.sum(degrees <= t)) for t in range(degree + 1)]
    np.testing.assert_array_equal(basis.positions(basis.exponents), np.arange(len(basis)))


def test_numbers_of_monomials_that_are_known():
    assert [count_monomials([2] * l_, d, True) for l_, d in ((4, 2), (5, 3))] == [33, 131]
    assert count_monomials([2] * 5, 6, True) - 1 == 242
    assert count_monomials([1] * 3, -1) == 0


def test_a_monomial_of_too_high_degree_is_not_found():
    with pytest.raises(KeyError):
        MonomialBasis([1, 1], 2).positions(np.array([[2, 1]]))


@pytest.mark.parametrize("vertex", [False, True])
def test_matrices_at_the_moments_of_a_point(vertex):
    """At a point the localising matrix is the constraint times the outer product of the monomials."""
    rng = np.random.default_rng(0)
    blocks = (2, 1, 2)
    basis = MonomialBasis(blocks, 4, vertex)
    if vertex:
        point = np.array([0, 1, 1, 0, 0], dtype=float)
    else:
        point = rng.uniform(0, 0.5, 5)
    moments = basis.evaluate(point[None, :])[0]
    g = {(0,) * 5: 0.5, (1, 0, 0, 0, 0): -1.0, (0, 1, 1, 0, 0): 2.0}
    for polynomial, order in (({(0,) * 5: 1.0}, 2), (g, 1)):
        block = basis.localizing(polynomial, order)
        small = moments[: block.side]
        value = CompiledPolynomial(polynomial, 5)(point)
        np.testing.assert_allclose(block.matrix(moments), value * np.outer(small, small), atol=1e-14)
        gram = rng.standard_normal((block.side, block.side))
        gram += gram.T
        assert block.adjoint(gram) @ moments == pytest.approx(value * small @ gram @ small)
    shifted = basis.shifted(g, 2)
    np.testing.assert_allclose(shifted @ moments, CompiledPolynomial(g, 5)(point) * moments[: basis.count(2)])
    assert basis.vector(g) @ moments == pytest.approx(CompiledPolynomial(g, 5)(point))


def test_products_in_one_information_set_vanish_on_pure_strategies():
    basis = MonomialBasis([2, 1], 2, vertex=True)
    assert basis.positions(np.array([[1, 1, 0], [3, 0, 0], [0, 2, 1]])).tolist() == [-1, 1, 5]
    assert basis.localizing({(1, 1, 0): 1.0}, 1).entries.nnz == 0
    assert basis.localizing({}, 1).entries.shape == (10, len(basis))


# ---------------------------------------------------------------------------------------------------- size


def test_the_size_is_known_before_anything_is_built():
    problem = box_problem({(1, 1): 1.0}, (1, 1))
    for order in (1, 2, 3):
        size, program = problem.size(order), build_relaxation({}, problem.ineqs, problem.eqs, (1, 1), order)
        assert size.side == program.side
        assert size.n_moments == len(program.basis)
        assert size.n_blocks == len(program.blocks)
    constrained = box_problem({(1, 1): 1.0}, (1, 1), eqs=[{(1, 1): 1.0, (0, 0): -0.25}])
    program = build_relaxation({}, constrained.ineqs, constrained.eqs, (1, 1), 2)
    assert constrained.size(2).n_equations == program.equations.shape[0] == 6


def test_the_solver_follows_from_the_size():
    assert relaxation_size([1] * 5, 2, False, [], []).solver == "clarabel"
    assert relaxation_size([1] * 9, 2, False, [], []).side == 55
    assert relaxation_size([1] * 10, 2, False, [], []).solver == "cvxopt"
    assert relaxation_size([2] * 5, 3, True, [], [], "scs").solver == "scs"
    # what needs a dense block of all pairs of entries is refused where the sparse one is not
    sizes = [relaxation_size([2] * 6, 3, True, [], [], solver).n_bytes for solver in ("clarabel", "cvxopt")]
    assert sizes[0] > 20 * sizes[1]


def test_least_orders():
    assert least_order([{(0,): 1.0}]) == 1
    assert least_order([{(3,): 1.0}, {(1,): 1.0}]) == 2


# ---------------------------------------------------------------------------------------------------- solvers


@pytest.fixture(scope="module")
def pentagon():
    game = cycle(5).game
    return build_relaxation(game.reduced[0], [], [], (1,) * 5, 2, vertex=True)


@pytest.mark.parametrize("solver, accuracy", [("clarabel", 1e-6), ("cvxopt", 1e-8), ("scs", 1e-5)])
def test_all_solvers_agree(pentagon, solver, accuracy):
    answer = solve_conic(pentagon, solver)
    assert answer.status == "solved"
    assert pentagon.objective @ answer.moments == pytest.approx(0.8, abs=accuracy)
    identity = check_identity(pentagon, answer.multipliers)
    assert identity.bound == pytest.approx(0.8, abs=accuracy)
    assert identity.bound >= 0.8 - 1e-12
    assert len(answer.multipliers.grams) == 1


@pytest.mark.parametrize("solver", ["clarabel", "cvxopt", "scs"])
def test_equations_of_all_solvers(solver):
    """The largest x + y with x y = 1/4 and x = y is 1; one of the equations is there twice."""
    half = {(1, 1): 1.0, (0, 0): -0.25}
    same = {(1, 0): 1.0, (0, 1): -1.0}
    problem = box_problem({(1, 0): 1.0, (0, 1): 1.0}, (1, 1), eqs=[half, same, half])
    program = build_relaxation(problem.objective, problem.ineqs, problem.eqs, (1, 1), 2)
    answer = solve_conic(program, solver)
    assert answer.status == "solved"
    assert np.abs(program.equations @ answer.moments).max() < 1e-5
    assert check_identity(program, answer.multipliers).bound == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("solver", ["clarabel", "cvxopt", "scs"])
def test_infeasible_relaxations_are_refuted(solver):
    problem = box_problem({(1,): 1.0}, (1,), ineqs=[{(1,): 1.0, (0,): -1.5}])
    program = build_relaxation(problem.objective, problem.ineqs, problem.eqs, (1,), 1)
    answer = solve_conic(program, solver)
    assert answer.status == "infeasible"
    assert check_refutation(program, answer.multipliers) < 1e-3
    assert check_refutation(program, dataclasses.replace(answer.multipliers, bound=1.0)) == math.inf


def test_scaled_columns_are_those_of_dense_products():
    rng = np.random.default_rng(0)
    for block in (
        MonomialBasis([2, 1], 4).localizing({(0, 0, 0): 1.0}, 2),
        MonomialBasis([2, 1], 4).localizing({(1, 0, 0): 1.0, (0, 0, 2): -2.0}, 1),
        MonomialBasis([1, 1, 1], 4, vertex=True).localizing({(0, 0, 0): 1.0}, 2),
    ):
        scaling = rng.standard_normal((block.side, block.side))
        scaled_block = ScaledBlock(block)
        rows, columns = triangle(block.side)
        weight = np.where(rows == columns, 1.0, math.sqrt(2))
        dense = []
        for k in scaled_block.moments:
            unit = np.zeros(block.entries.shape[1])
            unit[k] = 1.0
            dense.append((scaling.T @ block.matrix(unit) @ scaling)[rows, columns] * weight)
        filled = np.zeros((block.entries.shape[1], len(rows)))
        scaled_block.fill(scaling, filled)
        np.testing.assert_allclose(filled[scaled_block.moments], dense, atol=1e-12)
        assert np.count_nonzero(filled.any(axis=1)) == len(scaled_block.moments)
        matrix = scaling + scaling.T
        np.testing.assert_allclose(scaled_block.unpacked(scaled_block.packed(matrix)), matrix, atol=1e-14)


def test_sparse_linear_systems_give_what_those_of_cvxopt_give():
    cvxopt = pytest.importorskip("cvxopt")
    from cvxopt import solvers

    problem = box_problem(cycle(3).game.reduced[0], (1, 1, 1))
    program = build_relaxation(problem.objective, problem.ineqs, (), (1, 1, 1), 2)
    whole = []
    for block in program.blocks:
        rows, columns = triangle(block.side)
        where = np.empty((block.side, block.side), dtype=int)
        where[rows, columns] = where[columns, rows] = np.arange(len(rows))
        whole.append(-block.entries[where.ravel()])
    dense = cvxopt.matrix(sp.vstack(whole).toarray())
    plain = solvers.conelp(
        cvxopt.matrix(-program.objective),
        dense,
        cvxopt.matrix(0.0, (dense.size[0], 1)),
        {"l": 0, "q": [], "s": [block.side for block in program.blocks]},
        cvxopt.matrix(program.normalisation[None, :]),
        cvxopt.matrix([1.0]),
        options={"show_progress": False, "abstol": 1e-10, "reltol": 1e-10, "feastol": 1e-10},
    )
    ours = solve_conic(program, "cvxopt")
    assert -plain["primal objective"] == pytest.approx(program.objective @ ours.moments, abs=1e-7)


def test_a_singular_system_is_an_arithmetic_error():
    block = MonomialBasis([1], 2).localizing({(0,): 1.0}, 1)
    system = ScaledSystem([block], np.array([[1.0, 0.0, 0.0]]))
    with pytest.raises(ArithmeticError, match="dependent"):
        system({"rti": [np.zeros((2, 2))]})


# ---------------------------------------------------------------------------------------------------- proofs


def test_the_bound_pays_for_spoilt_multipliers(pentagon):
    answer = solve_conic(pentagon, "cvxopt")
    good = check_identity(pentagon, answer.multipliers)
    (gram,) = answer.multipliers.grams
    spoilt = gram.copy()
    spoilt[2, 2] += 0.3
    worse = check_identity(pentagon, dataclasses.replace(answer.multipliers, grams=(spoilt,)))
    assert worse.residual == pytest.approx(0.3, abs=1e-8)
    assert worse.bound >= 0.8
    negative = gram - 0.1 * np.eye(len(gram))
    assert check_identity(pentagon, dataclasses.replace(answer.multipliers, grams=(negative,))).least_eigenvalue < -0.05
    nothing = Multipliers(0.0, np.empty(0), (np.zeros_like(gram),))
    assert check_identity(pentagon, nothing).bound >= 0.8  # a proof, if a bad one
    assert good.bound < worse.bound
    low = dataclasses.replace(answer.multipliers, bound=answer.multipliers.bound - 0.2)
    assert check_identity(pentagon, low).bound == pytest.approx(0.8, abs=1e-8)


def test_the_identity_at_points_is_computed_without_the_maps(pentagon):
    problem = PolynomialProblem(cycle(5).game.reduced[0], (), (), (1,) * 5, True)
    level = problem.solve(2)
    points = problem.random_points(20, np.random.default_rng(0))
    assert set(np.unique(points)) <= {0.0, 1.0}
    assert problem.identity_error(level, points) < 1e-8
    (gram,) = level.answer.multipliers.grams
    spoilt = gram.copy()
    spoilt[0, 1] += 0.1
    multipliers = dataclasses.replace(level.answer.multipliers, grams=(spoilt,))
    answer = dataclasses.replace(level.answer, multipliers=multipliers)
    assert problem.identity_error(dataclasses.replace(level, answer=answer), points) > 0.05


def test_the_identity_with_equations_at_points():
    blocks = (1, 1, 1)
    payoff = cycle(3).game.reduced[0]
    ineqs, eqs = first_order_conditions(payoff, blocks, range(3))
    problem = box_problem(payoff, blocks, ineqs, eqs)
    level = problem.solve(2)
    points = problem.random_points(20, np.random.default_rng(0))
    assert level.program.equations.shape[0] > 0
    assert problem.identity_error(level, points) < 1e-6


def test_first_order_conditions_hold_at_a_maximum_and_not_elsewhere():
    payoff = {(1, 0): 1.0, (2, 0): -0.6, (0, 1): 0.2, (1, 1): -0.4}  # one information set of three actions
    ineqs, eqs = first_order_conditions(payoff, [2], [0])
    values = {}
    for a, b in itertools.product(np.linspace(0, 1, 51), repeat=2):
        if a + b <= 1 + 1e-12:
            values[a, b] = CompiledPolynomial(payoff, 2)(np.array([a, b]))
    best = np.array(max(values, key=values.get))
    assert all(CompiledPolynomial(g, 2)(best) >= -2e-2 for g in ineqs)
    assert all(abs(CompiledPolynomial(h, 2)(best)) <= 2e-2 for h in eqs)
    assert len(ineqs) == 3
    assert len(eqs) == 2
    elsewhere = np.array([0.2, 0.2])
    assert any(abs(CompiledPolynomial(h, 2)(elsewhere)) > 0.05 for h in eqs)


# ---------------------------------------------------------------------------------------------------- extraction


def test_points_of_a_flat_measure_are_extracted():
    rng = np.random.default_rng(1)
    basis = MonomialBasis([1, 1], 6)
    block = basis.localizing({(0, 0): 1.0}, 3)
    points = rng.uniform(0, 1, (3, 2))
    moments = np.array([0.5, 0.3, 0.2]) @ basis.evaluate(points)
    found = extract_points(basis, block, moments, 3)
    assert found.flat
    assert found.rank == 3
    np.testing.assert_allclose(
        found.points[np.argsort(found.points[:, 0])], points[np.argsort(points[:, 0])], atol=1e-6
    )


def test_pure_strategies_are_extracted_in_their_quotient():
    basis = MonomialBasis([2, 1], 4, vertex=True)
    block = basis.localizing({(0, 0, 0): 1.0}, 2)
    points = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    found = extract_points(basis, block, np.array([0.4, 0.6]) @ basis.evaluate(points), 2)
    assert found.flat
    np.testing.assert_allclose(found.points[np.argsort(-found.points[:, 0])], points, atol=1e-8)


def test_nothing_is_extracted_that_is_not_there():
    basis = MonomialBasis([1], 4)
    block = basis.localizing({(0,): 1.0}, 2)
    uniform = 1 / np.arange(1.0, 6.0)  # of the uniform law, which has no finite support
    found = extract_points(basis, block, uniform, 2)
    assert not found.flat
    assert found.points.shape == (0, 1)
    assert extract_points(basis, block, uniform, 2, least_order=2, half_degree=2).flat is False


def test_candidates_tell_the_points_of_a_mixture_apart():
    basis = MonomialBasis([1, 1], 2, vertex=True)
    moments = 0.5 * basis.evaluate(np.array([[1.0, 0.0], [0.0, 1.0]])).sum(axis=0)
    candidates = candidate_points(basis, moments)
    np.testing.assert_allclose(candidates, [[0.5, 0.5], [1, 0], [0, 1]])


# ---------------------------------------------------------------------------------------------------- cvxpy


def test_the_cvxpy_problem_has_the_same_value_and_can_be_extended():
    cp = pytest.importorskip("cvxpy")
    payoff = cycle(3).game.reduced[0]
    ineqs = strategy_constraints([1, 1, 1])
    problem = moment_problem(payoff, ineqs, order=2)
    assert problem.solve(solver="CLARABEL") == pytest.approx(0.668559, abs=1e-5)
    moments = problem.var_dict["moments"]
    extended = cp.Problem(problem.objective, [*problem.constraints, moments[1] == 0.25])
    assert extended.solve(solver="CLARABEL") <= problem.value + 1e-6
    assert moments.value[1] == pytest.approx(0.25)


def test_the_cvxpy_problem_takes_equations():
    pytest.importorskip("cvxpy")
    circle = {(2, 0): 1.0, (0, 2): 1.0, (0, 0): -1.0}
    problem = moment_problem({(1, 0): 1.0, (0, 1): 1.0}, [], [circle], 1)
    assert problem.solve(solver="CLARABEL") == pytest.approx(math.sqrt(2), abs=1e-6)


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        (({(4,): 1.0}, [], [], 1), ValueError, "order must be at least 2"),
        (({(1,): 1.0}, [{(1, 1): 1.0}], [], 1), ValueError, "tuples of 1 exponents"),
        (({(1,): math.inf}, [], [], 1), ValueError, "finite"),
        (({(): 1.0}, [], [], 1), ValueError, "at least one exponent"),
        (({}, [], [], 1), TypeError, "with a term"),
        (({(1,): 1.0}, [], [], 1.5), TypeError, None),
    ],
)
def test_cvxpy_problems_that_do_not_fit(arguments, error, match):
    with pytest.raises(error, match=match):
        moment_problem(*arguments)


def test_a_square_is_a_square():
    one = affine(1.0, [2.0, -1.0])
    square = multiply(one, one)
    assert total(square, scaled(square, -1.0)) == {}


def test_cvxpy_problems_too_large_are_refused_before_they_are_built():
    poly = {(2, *[0] * 39): 1.0}
    with pytest.raises(ValueError, match=r"fit into half of the memory.*force=True"):
        moment_problem(poly, order=6)
    with pytest.raises(TypeError):
        moment_problem(poly, order=1, force="yes")
    with pytest.raises(TypeError):
        moment_problem(poly, 3)
