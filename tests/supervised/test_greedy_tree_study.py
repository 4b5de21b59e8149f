"""Pieces of the study of influence-greedy trees."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from assay.studies.supervised import greedy_tree as study
from assay.studies.supervised._greedy_tree_peers import LoopLeaves, cube_of, planted_tree, smallest_cart, weights_of
from assay.supervised.greedy_tree_growth import TableLeaves, grow

STUDY = study.GreedyTreeStudy


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "supervised/greedy_tree"
    numbers = {claim.id: claim.number for claim in STUDY.claims}
    assert (numbers["C2b"], numbers["C2d"], numbers["C10"], numbers["C12"]) == (301, 101, 20.0, 1.3)


def test_planted_trees_have_their_depth():
    rng = np.random.default_rng(0)
    for _ in range(5):
        planted = planted_tree(6, 3, rng)
        assert planted.table.shape == (64,)
        assert planted.average_depth <= planted.depth <= 3
        exact = grow(TableLeaves(planted.table, planted.p), 0.0, 1000)
        largest = exact.trace[0][5]
        ones = weights_of(planted.p) @ planted.table
        assert largest * planted.average_depth >= 2 * ones * (1 - ones) - 1e-12


def test_loops_and_kernel_grow_the_same_tree():
    rng = np.random.default_rng(1)
    planted = planted_tree(7, 4, rng)
    fast, slow = (grow(kind(planted.table, planted.p), 0.01, 100) for kind in (TableLeaves, LoopLeaves))
    assert fast.feature == slow.feature
    np.testing.assert_allclose(fast.trace, slow.trace, atol=1e-12)


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
def test_smallest_cart_is_smallest(criterion):
    planted = planted_tree(6, 4, np.random.default_rng(2))
    points, weights = cube_of(6), weights_of(planted.p)
    found = smallest_cart(points, planted.table, weights, 0.02, criterion)

    def error(leaves):
        tree = DecisionTreeClassifier(criterion=criterion, max_leaf_nodes=leaves, random_state=0)
        return weights @ (tree.fit(points, planted.table, sample_weight=weights).predict(points) != planted.table)

    assert error(found) <= 0.02 + 1e-12
    assert all(error(leaves) > 0.02 for leaves in range(2, found))
    assert smallest_cart(points, np.zeros(64, int), weights, 0.02, criterion) == 1


def test_demonstration():
    certificates = STUDY().demonstrate()
    assert all(certificate.holds for certificate in certificates)
