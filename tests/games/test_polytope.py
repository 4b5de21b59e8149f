"""Feasible sets: projections and vertices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.games.polytope import (
    Box,
    CappedSimplex,
    FeasibleSet,
    Polytope,
    Product,
    Simplex,
    as_feasible_set,
    first_point,
)

SETS = {
    "simplex": Simplex(5),
    "box": Box([-1, 0, 0, 2, -3], [1, 0, 1, 2.5, -1]),
    "capped": CappedSimplex(5, 0.3),
    "capped, large": CappedSimplex(5, 1.5, total=4.0),
    "capped, one point": CappedSimplex(5, 0.2),
    "product": Product(Simplex(2), CappedSimplex(3, 0.5)),
}


@pytest.mark.parametrize("name", SETS)
@given(point=arrays(np.float64, 5, elements=st.floats(-5, 5)), loss=arrays(np.float64, 5, elements=st.floats(-2, 2)))
@settings(max_examples=25, deadline=None)
def test_projection_and_vertex_satisfy_their_optimality_conditions(name, point, loss):
    feasible = SETS[name]
    nearest, vertex = feasible.project(point), feasible.minimise(loss)
    for member in (nearest, vertex):
        np.testing.assert_allclose(feasible.project(member), member, atol=1e-12)
        assert np.linalg.norm(member) <= feasible.radius + 1e-12
    # The projection makes an obtuse angle with every member; the vertex is no worse than any.
    for other in (vertex, feasible.minimise(-loss), feasible.minimise(nearest - point), first_point(feasible)):
        assert (point - nearest) @ (other - nearest) <= 1e-9
        assert loss @ vertex <= loss @ other + 1e-9


def test_known_points():
    np.testing.assert_allclose(CappedSimplex(3, 0.5).project(np.array([2.0, 0.25, 0.0])), [0.5, 0.375, 0.125])
    np.testing.assert_allclose(CappedSimplex(3, 0.4).minimise(np.array([1.0, 0.0, 2.0])), [0.4, 0.4, 0.2])
    assert CappedSimplex(3, 0.4).radius == pytest.approx(0.6)
    assert Simplex(4).radius == 1
    np.testing.assert_allclose(first_point(Simplex(4)), np.full(4, 0.25))
    assert Product(Simplex(2), Simplex(3)).radius == pytest.approx(np.sqrt(2))
    assert isinstance(Box([0], [1]), FeasibleSet)
    for feasible in SETS.values():
        assert type(feasible).__name__ in repr(feasible)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Simplex(0), "size"),
        (lambda: Box([1.0], [0.0]), "lower must be at most upper"),
        (lambda: Box([0.0, 0.0], [1.0]), "upper must have the length of lower"),
        (lambda: Box([0.0], [np.inf]), "upper must be a finite"),
        (lambda: CappedSimplex(3, 0.3), "cap must be at least"),
        (lambda: CappedSimplex(3, -1.0), "cap"),
        (lambda: CappedSimplex(3, 1.0, total=0.0), "total"),
        (lambda: Product(), "at least one set"),
        (lambda: Polytope(abs, abs, radius=-1.0, size=2), "radius"),
        (lambda: Polytope(abs, abs, radius=1.0, size=0), "size"),
        (lambda: as_feasible_set(Simplex(3), "X", 4), "X must be a set of dimension 4"),
        (lambda: as_feasible_set(Polytope(lambda v: v[:1], abs, 1.0, 2), "X"), "X.project must return a vector"),
        (lambda: as_feasible_set(Polytope(lambda v: v + np.nan, abs, 1.0, 2), "X"), "nan"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_types():
    with pytest.raises(TypeError, match="project"):
        Polytope(3, abs, radius=1.0, size=2)
    with pytest.raises(TypeError, match="'project'"):
        as_feasible_set(object(), "X")
    with pytest.raises(TypeError, match=r"parts\[1\]"):
        Product(Simplex(2), 3)

    class NoRadius:
        size = 2
        project = minimise = staticmethod(lambda v: v)

    with pytest.raises(TypeError, match="'radius'"):
        as_feasible_set(NoRadius(), "Y")
