"""The semidefinite programs against a plain one, and the bound against whatever multipliers it is given."""

import numpy as np
import pytest

from assay.transport import ExponentialFamily, GaussianFamily
from assay.transport.mixture_problem import prepare_mixture_problem
from assay.transport.moment_matrices import MonomialBasis
from assay.transport.moment_relaxation import MomentRelaxation, level_size

cp = pytest.importorskip("cvxpy")


def relaxation_of(moments, family, bounds, order, distance="W2", constraints=()):
    problem = prepare_mixture_problem(moments, None, None, family, None, bounds, constraints, 2 * order)
    relaxation = MomentRelaxation(
        problem.moments(order),
        problem.dim,
        problem.family_map(order),
        problem.n_params,
        problem.inequalities,
        order,
        distance,
    )
    return problem, relaxation


UNIFORM = [1 / (k + 1) if k % 2 == 0 else 0.0 for k in range(13)]


def plain_w2(problem, order, weight):
    """Entry by entry, with one symmetric matrix variable per block and a constraint per entry."""
    joint, mixing = MonomialBasis(2, 2 * order), MonomialBasis(1, 2 * order)
    lam, phi = cp.Variable(len(joint)), cp.Variable(len(mixing))
    constraints = [phi[0] == 1]

    def entry(basis, variable, exponent):
        return variable[int(basis.positions(np.array([exponent]))[0])]

    def matrix(basis, variable, size, polynomial):
        block = cp.Variable((size, size), PSD=True)
        for i in range(size):
            for j in range(i, size):
                total = basis.exponents[i] + basis.exponents[j]
                value = sum(c * entry(basis, variable, total + np.array(e)) for e, c in polynomial.items())
                constraints.append(block[i, j] == value)
        return block

    matrix(joint, lam, joint.count(order), {(0, 0): 1.0})
    M = matrix(mixing, phi, mixing.count(order), {(0,): 1.0})
    for g in problem.inequalities:
        matrix(mixing, phi, mixing.count(order - 1), g)
    target, family_map = problem.moments(order), problem.family_map(order).toarray()
    for k in range(2 * order + 1):
        constraints.append(entry(joint, lam, (k, 0)) == target[k])
        constraints.append(entry(joint, lam, (0, k)) == family_map[k] @ phi)
    cost = entry(joint, lam, (2, 0)) - 2 * entry(joint, lam, (1, 1)) + entry(joint, lam, (0, 2))
    cp.Problem(cp.Minimize(cost + weight * cp.trace(M)), constraints).solve(solver="CLARABEL")
    return cost.value


@pytest.mark.parametrize("order", [1, 2, 3])
def test_fast_assembly_is_the_plain_one(order):
    problem, relaxation = relaxation_of(UNIFORM, GaussianFamily(0.3), [-1, 1], order)
    assert relaxation.solve(1e-4).value == pytest.approx(plain_w2(problem, order, 1e-4), abs=2e-7)


@pytest.mark.parametrize("distance", ["W2", "TV"])
def test_bound_holds_for_any_multipliers(distance):
    # The distance of this target to the family is known: 1/4, and 2 Phi(.25 / sqrt(.05)) - 1.
    target = [1.0, 0.0, 0.05, 0.0, 3 * 0.05**2, 0.0, 15 * 0.05**3]
    problem, relaxation = relaxation_of(target, GaussianFamily(0.05), [0.5, 1], 3, distance)
    true = 0.25 / problem.scale**2 if distance == "W2" else 0.7364475
    solution = relaxation.solve(0.0)
    lower, _ = relaxation.lower_bound(solution.multipliers)
    assert lower <= true + 1e-12
    assert lower >= solution.value - 1e-5
    rng = np.random.default_rng(0)
    for size in (1e-6, 1e-3, 0.1, 3.0):
        noisy = [Z + size * rng.normal(size=Z.shape) for Z in solution.multipliers]
        corrupted, _ = relaxation.lower_bound(noisy)
        assert corrupted <= true + 1e-12
        assert corrupted < lower


def test_potential_is_the_part_that_depends_on_the_target():
    target = [1.0, 0.0, 0.05, 0.0, 3 * 0.05**2]
    _, relaxation = relaxation_of(target, GaussianFamily(0.05), [0.5, 1], 2)
    solution = relaxation.solve(0.0)
    _, potential = relaxation.lower_bound(solution.multipliers)
    # Sensitivity of the optimum to the second moment, from two more programs.
    values = []
    for step in (-1e-3, 1e-3):
        moved = relaxation.target.copy()
        moved[2] += step
        other = MomentRelaxation(
            moved,
            1,
            relaxation.family_map,
            1,
            prepare_mixture_problem(target, None, None, GaussianFamily(0.05), None, [0.5, 1], (), 4).inequalities,
            2,
        )
        values.append(other.solve(0.0).value)
    assert potential[2] == pytest.approx((values[1] - values[0]) / 2e-3, abs=1e-2)


def test_matching_moments():
    target = [
        1.0,
        0.5,
        2 * (0.5 * 0.2**2 + 0.5 * 0.8**2),
        6 * (0.5 * 0.2**3 + 0.5 * 0.8**3),
        24 * 0.5 * (0.2**4 + 0.8**4),
    ]
    problem, relaxation = relaxation_of(target, ExponentialFamily(), [0, 1], 2)
    phi = relaxation.matching_moments()
    np.testing.assert_allclose(phi * problem.unit ** np.arange(5), [1, 0.5, 0.34, 0.26, 0.2056], rtol=1e-9)
    _, outside = relaxation_of(target, ExponentialFamily(), [0, 0.7], 2)
    assert outside.matching_moments() is None
    _, other = relaxation_of(UNIFORM, GaussianFamily(0.3), [-1, 1], 2)
    assert other.matching_moments() is None


def test_sizes():
    for dim, order, rows in ((1, 4, 15), (1, 6, 28), (2, 2, 15), (2, 3, 35), (3, 2, 28)):
        assert level_size(dim, dim, [2] * dim, order, "W2").largest_block == rows
    _, relaxation = relaxation_of(UNIFORM, GaussianFamily(0.3), [-1, 1], 4)
    size = level_size(1, 1, [2], 4, "W2")
    assert sum(v.size for v in relaxation.problem.variables()) == size.n_variables
    equations = [c for c in relaxation.problem.constraints if type(c).__name__ != "PSD"]
    assert sum(c.size for c in equations) == size.n_equations
    assert size.largest_block == max(
        c.args[0].shape[0] for c in relaxation.problem.constraints if type(c).__name__ == "PSD"
    )
    with pytest.raises(ValueError, match="order must be at least half the degree 4"):
        level_size(1, 1, [2, 4], 1, "W2")


def test_empty_set_is_noticed():
    never = ({(0,): -0.5, (2,): -1.0},)
    _, relaxation = relaxation_of(UNIFORM, GaussianFamily(0.3), [-1, 1], 2, constraints=never)
    with pytest.raises(ValueError, match="bounds and constraints must leave a parameter"):
        relaxation.solve(0.0)
