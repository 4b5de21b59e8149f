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


class OwnBox:
    """The unit box, written by somebody who is careless in one way."""

    size, radius = 2, np.sqrt(2)

    def __init__(self, careless):
        self.careless, self.asked = careless, 0

    def project(self, point):
        self.asked += 1
        nearest = np.clip(point, 0, 1)
        if self.careless == "in place":
            point[:] = nearest
            return point
        if self.careless == "nan":
            return nearest if self.asked < 5 else nearest * np.nan
        if self.careless == "column":
            return nearest if self.asked < 5 else nearest[:, None]
        if self.careless == "length":
            return nearest if self.asked < 5 else nearest[:1]
        return {"list": list, "float32": np.float32}.get(self.careless, np.asarray)(nearest)

    def minimise(self, loss):
        return np.where(loss < 0, 1, 0)


@pytest.mark.parametrize("careless", ["not at all", "list", "float32", "in place"])
def test_sets_of_the_users_own(careless):
    from assay.games.asymmetric_perturbation import asym_gda

    result = asym_gda([[1.0, -1], [0.5, 1]], X=OwnBox(careless), p=[-1.0, -1.0])
    expected = asym_gda([[1.0, -1], [0.5, 1]], X=Box([0, 0], [1, 1]), p=[-1.0, -1.0])
    np.testing.assert_allclose(result.x, expected.x, atol=1e-6)
    assert result.certified


@pytest.mark.parametrize(
    "careless, message",
    [("nan", "X.project.* must be a finite"), ("column", "X.project.* must be a finite 1-D"), ("length", "length 2")],
)
def test_sets_that_go_wrong_later_are_named(careless, message):
    from assay.games.asymmetric_perturbation import asym_gda

    with pytest.raises(ValueError, match=message):
        asym_gda([[1.0, -1], [0.5, 1]], X=OwnBox(careless), p=[-1.0, -1.0])


def test_a_radius_that_is_too_small_would_prove_what_is_wrong():
    corners = Polytope(lambda v: np.clip(v, 0, 1), lambda c: np.where(c < 0, 1.0, 0.0), radius=0.5, size=2)
    with pytest.raises(ValueError, match=r"X.radius must be the largest norm in the set, got 0\.5 .* norm 1\.41"):
        as_feasible_set(corners, "X")


def test_boxes_keep_what_they_were_given():
    lower = np.zeros(2)
    box = Box(lower, [1, 1])
    lower[:] = -5
    np.testing.assert_array_equal(box.lower, [0, 0])
    assert Box([-1e200], [1e200]).radius == 1e200
    assert CappedSimplex(2, 1e200, 1e200).radius == 1e200
