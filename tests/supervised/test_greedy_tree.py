"""Influence-greedy trees: known traces, brute force, the three ways to score, and certificates that notice."""

import itertools
import json
import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.supervised import GreedyTree, build_topdown_tree, influences
from assay.supervised.boolean_influence import BooleanOracle, binomial_interval, points_of, table_influences
from assay.supervised.greedy_tree_certificate import exact_certificates, log10_size_bound, sampled_certificates
from assay.validation import ConvergenceWarning


def parity(x):
    return x.sum(axis=1) % 2


def majority(x):
    return x.sum(axis=1) >= 2


def multiplexer(x):
    return np.where(x[:, 0] == 1, x[:, 1], x[:, 2])


def mixed(x):
    return np.where(x[:, 2] == 1, x[:, 3] ^ x[:, 7], x[:, 10] & x[:, 11])


def brute_influences(f, p):
    """By the definition, with the coordinate drawn anew."""
    n = len(p)
    cube = np.array(list(itertools.product((0, 1), repeat=n)), dtype=np.uint8)
    weight = np.prod(np.where(cube == 1, p, 1 - np.asarray(p)), axis=1)
    answer = np.zeros(n)
    for i in range(n):
        for bit, chance in ((0, 1 - p[i]), (1, p[i])):
            other = cube.copy()
            other[:, i] = bit
            answer[i] += chance * weight @ (np.asarray(f(cube)) != np.asarray(f(other)))
    return answer


def plain_tree(table, p, eps):
    """The method word by word, with dictionaries for restrictions: sizes, errors and costs of all steps."""
    n = len(p)
    cube = points_of(np.arange(1 << n), n)
    weight = np.prod(np.where(cube == 1, p, 1 - np.asarray(p)), axis=1)

    def facts(path):
        inside = np.all([cube[:, i] == bit for i, bit in path.items()], axis=0) if path else np.ones(1 << n, bool)
        reach = weight[inside].sum()
        ones = weight[inside] @ table[inside]
        scores = np.zeros(n)
        for i in set(range(n)) - set(path):
            flipped = np.flatnonzero(inside) ^ (1 << i)
            scores[i] = 2 * p[i] * (1 - p[i]) * weight[inside] @ (table[inside] != table[flipped])
        return min(ones, reach - ones), scores

    leaves = [({}, *facts({}))]
    trace = []
    while True:
        trace.append((len(leaves), sum(leaf[1] for leaf in leaves), sum(leaf[2].sum() for leaf in leaves)))
        if trace[-1][1] <= eps + 1e-12:
            return np.array(trace)
        best = max(leaf[2].max() for leaf in leaves)
        k = next(k for k, leaf in enumerate(leaves) if leaf[2].max() >= best * (1 - 1e-10))
        path, _, scores = leaves.pop(k)
        i = int(np.flatnonzero(scores >= scores.max() * (1 - 1e-10))[0])
        leaves += [({**path, i: bit}, *facts({**path, i: bit})) for bit in (0, 1)]


class TestInfluences:
    @pytest.mark.parametrize(
        ("f", "p", "expected"),
        [
            (lambda x: x[:, 0] & x[:, 1], [0.5, 0.5], [0.25, 0.25]),
            (parity, [0.5] * 3, [0.5] * 3),
            (majority, [0.3, 0.5, 0.7], [0.21, 0.29, 0.21]),
            (multiplexer, [0.5] * 3, [0.25] * 3),
            (lambda x: np.zeros(len(x)), [0.3, 0.6], [0.0, 0.0]),
            (lambda x: x[:, 1], [0.3, 0.2], [0.0, 0.32]),
        ],
    )
    def test_known_values(self, f, p, expected):
        np.testing.assert_allclose(influences(f, len(p), p), expected, atol=1e-15)
        np.testing.assert_allclose(brute_influences(f, p), expected, atol=1e-15)

    @settings(max_examples=25, deadline=None)
    @given(n=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
    def test_definition(self, n, seed):
        rng = np.random.default_rng(seed)
        table, p = rng.integers(0, 2, 1 << n), rng.uniform(0.01, 0.99, n)
        powers = 1 << np.arange(n)
        np.testing.assert_allclose(
            influences(table, n, p), brute_influences(lambda x: table[x @ powers], p), atol=1e-14
        )

    @pytest.mark.parametrize("n", [9, 10, 11, 13])
    def test_blocks_of_the_kernel(self, n):
        rng = np.random.default_rng(n)
        table, p = rng.integers(0, 2, 1 << n).astype(np.uint8), rng.uniform(0.1, 0.9, n)
        index = np.arange(1 << n)
        cube = points_of(index, n)
        weight = np.prod(np.where(cube == 1, p, 1 - p), axis=1)
        ones, measured = table_influences(table, p)
        assert ones == pytest.approx(weight @ table, abs=1e-14)
        flips = [weight @ (table != table[index ^ (1 << i)]) for i in range(n)]
        np.testing.assert_allclose(measured, 2 * p * (1 - p) * flips, atol=1e-14)

    def test_sampled(self):
        p = [0.3, 0.5, 0.7]
        measured = influences(majority, 3, p, "sampled", n_samples=20_000, rng=0)
        np.testing.assert_allclose(measured, [0.21, 0.29, 0.21], atol=0.01)
        np.testing.assert_array_equal(measured, influences(majority, 3, p, "sampled", n_samples=20_000, rng=0))

    def test_oss_and_degree_inequalities(self):
        rng = np.random.default_rng(3)
        for _ in range(20):
            p = rng.uniform(0.1, 0.9, 5)
            tree = build_topdown_tree(rng.integers(0, 2, 32), 5, p, 0.0)
            ones = tree.value[0]
            table = tree.predict(points_of(np.arange(32), 5))
            measured = influences(table, 5, p)
            assert measured.sum() <= tree.max_depth * 2 * ones * (1 - ones) + 1e-12
            assert measured.max() >= 2 * ones * (1 - ones) / tree.average_depth - 1e-12


class TestKnownTrees:
    @pytest.mark.parametrize(
        ("f", "n", "p", "trace"),
        [
            (lambda x: x[:, 0] & x[:, 1], 2, 0.5, [(1, 0.25, 0.5), (2, 0.25, 0.25), (3, 0, 0)]),
            (
                parity,
                3,
                0.5,
                [
                    *((1, 0.5, 1.5), (2, 0.5, 1), (3, 0.5, 0.75), (4, 0.5, 0.5)),
                    *((5, 0.375, 0.375), (6, 0.25, 0.25), (7, 0.125, 0.125), (8, 0, 0)),
                ],
            ),
            (
                majority,
                3,
                [0.3, 0.5, 0.7],
                [(1, 0.5, 0.71), (2, 0.21, 0.42), (3, 0.15, 0.273), (4, 0.09, 0.126), (5, 0.045, 0.063), (6, 0, 0)],
            ),
            (lambda x: np.ones(len(x)), 4, 0.5, [(1, 0, 0)]),
            (lambda x: x[:, 2], 4, 0.3, [(1, 0.3, 0.42), (2, 0, 0)]),
        ],
    )
    def test_traces(self, f, n, p, trace):
        tree = build_topdown_tree(f, n, p, 0.0)
        np.testing.assert_allclose(tree.trace, trace, atol=1e-15)
        assert tree.certified
        assert tree.status == "reached"

    def test_lowest_index_wins_a_tie(self):
        tree = build_topdown_tree(multiplexer, 3, 0.5, 0.0)
        assert (tree.n_leaves, tree.feature[0], tree.max_depth) == (4, 0, 2)

    def test_parity_that_correlation_cannot_see(self):
        tree = build_topdown_tree(lambda x: x[:, 3] ^ x[:, 7] ^ x[:, 10], 12, 0.5, 0.02)
        assert (tree.n_leaves, tree.max_depth) == (8, 3)
        assert build_topdown_tree(mixed, 12, 0.5, 0.02).n_leaves == 7

    @settings(max_examples=15, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), eps=st.sampled_from([0.0, 0.05, 0.2]))
    def test_plain_version(self, seed, eps):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        p = rng.uniform(0.1, 0.9, n)
        table = rng.integers(0, 2, 1 << n).astype(np.uint8)
        tree = build_topdown_tree(table, n, p, eps)
        np.testing.assert_allclose(tree.trace, plain_tree(table, p, eps), atol=1e-13)
        assert tree.certified
        if eps == 0.0:
            np.testing.assert_array_equal(tree.predict(points_of(np.arange(1 << n), n)), table)

    def test_reference_tree(self):
        first = build_topdown_tree(majority, 3, [0.3, 0.5, 0.7], 0.0)
        tree = build_topdown_tree(majority, 3, [0.3, 0.5, 0.7], 0.1, reference=first)
        assert len(tree.certificates) == 3 + 3
        assert tree.certificates[3].bound == log10_size_bound(0.1, 3, first.average_depth)
        assert tree.certified
        # no tree of the majority of three has depth 1
        wrong = build_topdown_tree(majority, 3, [0.3, 0.5, 0.7], 0.1, reference=(1, 1.0))
        assert not wrong.certified

    def test_bound(self):
        # exp(Delta D log(e / eps)) bounds both parts of the maximum
        for depth, average, eps in [(3, 2.5, 0.05), (3, 3.0, 0.9), (5, 1.1, 0.3)]:
            assert 10 ** log10_size_bound(eps, depth, average) <= math.exp(depth * average * math.log(math.e / eps)) * (
                1 + 1e-9
            )
        assert log10_size_bound(0.0, 2, 2) == math.inf
        assert log10_size_bound(0.1, 0, 0) == 0.0
        assert log10_size_bound(0.1, 3, 2, 4.0) == pytest.approx(24 * math.log10(math.e * 2 / 0.3), rel=1e-12)

    def test_extreme_probabilities(self):
        tree = build_topdown_tree(parity, 4, [1e-12, 1e-8, 0.5, 1 - 1e-12], 0.0)
        assert tree.n_leaves == 16
        np.testing.assert_array_equal(tree.predict(points_of(np.arange(16), 4)), parity(points_of(np.arange(16), 4)))

    def test_uniform_influence_is_another_tree_of_the_same_function(self):
        rng = np.random.default_rng(0)
        table, p = rng.integers(0, 2, 256), rng.uniform(0.05, 0.95, 8)
        product, uniform = (build_topdown_tree(table, 8, p, 0.05, influence=kind) for kind in ("product", "uniform"))
        assert uniform.error <= 0.05
        assert all(certificate.holds for certificate in uniform.certificates)
        assert not np.array_equal(product.feature, uniform.feature)

    def test_budget_is_reported(self):
        with pytest.warns(ConvergenceWarning, match="max_leaves was reached"):
            tree = build_topdown_tree(parity, 5, 0.5, 0.0, max_leaves=3)
        assert (tree.n_leaves, tree.status) == (3, "budget")
        assert not tree.certificates[0].holds


class TestSampled:
    @pytest.mark.parametrize("mode", ["sampled", "pairs"])
    @pytest.mark.parametrize(
        ("f", "n", "p"),
        [
            (lambda x: x[:, 0] ^ x[:, 1], 4, 0.5),
            (majority, 3, [0.3, 0.5, 0.7]),
            (lambda x: x[:, 2], 4, 0.3),
            (lambda x: np.ones(len(x)), 3, 0.5),
        ],
    )
    def test_close_to_exact(self, mode, f, n, p):
        exact = build_topdown_tree(f, n, p, 0.1)
        tree = build_topdown_tree(f, n, p, 0.1, mode=mode, rng=1)
        assert tree.n_leaves <= 2 * exact.n_leaves + 2
        assert tree.error <= 0.1
        assert tree.certified
        assert tree.queries > 0

    def test_score_is_at_least_a_quarter_of_the_largest(self):
        rng = np.random.default_rng(5)
        n = 6
        table, p = rng.integers(0, 2, 1 << n).astype(np.uint8), rng.uniform(0.2, 0.8, n)
        tree = build_topdown_tree(table, n, p, 0.1, mode="sampled", rng=2)
        cube = points_of(np.arange(1 << n), n)
        weight = np.prod(np.where(cube == 1, p, 1 - p), axis=1)
        leaves = {0: (np.ones(1 << n, bool), ())}
        for node in tree.history["node"][:-1]:
            scores = {
                (leaf, i): 2
                * p[i]
                * (1 - p[i])
                * weight[inside]
                @ (table != table[np.arange(1 << n) ^ (1 << i)])[inside]
                for leaf, (inside, path) in leaves.items()
                for i in set(range(n)) - set(path)
            }
            i = int(tree.feature[node])
            assert scores[int(node), i] >= 0.25 * max(scores.values())
            inside, path = leaves.pop(int(node))
            for child, bit in ((tree.left[node], 0), (tree.right[node], 1)):
                leaves[int(child)] = (inside & (cube[:, i] == bit), (*path, i))

    def test_many_variables(self):
        tree = build_topdown_tree(mixed, 60, 0.5, 0.05, rng=0)
        assert tree.mode == "sampled"
        assert set(tree.feature[tree.feature >= 0]) == {2, 3, 7, 10, 11}
        assert tree.certified

    def test_queries_are_linear_in_the_variables(self):
        queries = [build_topdown_tree(mixed, n, 0.5, 0.05, mode="sampled", rng=0).queries for n in (20, 40, 80)]
        slopes = np.diff(np.log(queries)) / np.log(2)
        assert (slopes <= 1.3).all()

    def test_same_seed_same_tree(self):
        first, second = (build_topdown_tree(mixed, 14, 0.4, 0.1, mode="sampled", rng=7) for _ in range(2))
        np.testing.assert_array_equal(first.feature, second.feature)
        assert first.error == second.error

    def test_budget(self):
        with pytest.warns(ConvergenceWarning):
            tree = build_topdown_tree(parity, 18, 0.5, 0.05, rng=0, max_leaves=4)
        assert tree.status == "budget"
        assert not tree.certificates[0].holds

    def test_interval_is_that_of_the_binomial_law(self):
        lower, upper = binomial_interval(np.array([0, 3, 20]), 20, 0.01)
        tail = sum(math.comb(20, k) * upper[1] ** k * (1 - upper[1]) ** (20 - k) for k in range(4))
        assert tail == pytest.approx(0.01, rel=1e-9)
        assert (lower[0], upper[2]) == (0.0, 1.0)
        assert upper[0] == pytest.approx(1 - 0.01 ** (1 / 20))


class TestCertificatesNotice:
    @pytest.fixture
    def solved(self):
        rng = np.random.default_rng(0)
        table, p = rng.integers(0, 2, 64).astype(np.uint8), rng.uniform(0.2, 0.8, 6)
        return table, p, build_topdown_tree(table, 6, p, 0.1)

    def test_wrong_labels(self, solved):
        table, p, tree = solved
        assert not exact_certificates(table, p, replace(tree, label=1 - tree.label))[0].holds
        oracle, rng = BooleanOracle(table, 6), np.random.default_rng(0)
        assert sampled_certificates(oracle, p, tree, 0.05, rng)[0].holds
        assert not sampled_certificates(oracle, p, replace(tree, label=1 - tree.label), 0.05, rng)[0].holds

    def test_wrong_split(self, solved):
        table, p, tree = solved
        feature = tree.feature.copy()
        feature[0] = (feature[0] + 1) % 6
        assert not exact_certificates(table, p, replace(tree, feature=feature))[2].holds

    def test_wrong_scores(self, solved):
        table, p, tree = solved
        history = {**tree.history, "score": tree.history["score"] * (1 + 1e-9)}
        assert not exact_certificates(table, p, replace(tree, history=history))[2].holds

    def test_another_function(self, solved):
        table, p, tree = solved
        assert not all(certificate.holds for certificate in exact_certificates(1 - table, p, tree))

    def test_another_distribution(self, solved):
        table, p, tree = solved
        assert not all(certificate.holds for certificate in exact_certificates(table, 1 - p, tree))


class TestExports:
    def test_networkx(self):
        tree = build_topdown_tree(majority, 3, 0.5, 0.0)
        graph = tree.to_networkx()
        assert nx.is_arborescence(graph)
        leaves = [node for node in graph if graph.out_degree(node) == 0]
        assert sum(graph.nodes[node]["prob"] for node in leaves) == pytest.approx(1.0)

    def test_sklearn_arrays_give_the_same_labels(self):
        tree = build_topdown_tree(majority, 3, 0.5, 0.0)
        arrays = tree.to_sklearn_like()
        for point in points_of(np.arange(8), 3):
            node = 0
            while arrays["children_left"][node] >= 0:
                go_left = point[arrays["feature"][node]] <= arrays["threshold"][node]
                node = arrays["children_left" if go_left else "children_right"][node]
            assert arrays["value"][node, 0].argmax() == tree.predict(point[None])[0]

    def test_text_and_dot(self):
        tree = build_topdown_tree(majority, 3, 0.5, 0.0, feature_names=['a "b"', "c", "d"])
        text, dot = tree.export_text(["no", "yes"]), tree.export_graphviz(["no", "yes"])
        assert text.count("class: yes") + text.count("class: no") == tree.n_leaves
        assert "truncated branch" in tree.export_text(max_depth=1)
        assert dot.count("->") == len(tree.feature) - 1
        assert 'a \\"b\\" = 0' in dot

    def test_result(self):
        tree = build_topdown_tree(majority, 3, 0.5, 0.0)
        assert isinstance(tree, GreedyTree)
        content = json.loads(json.dumps(tree.to_dict(), allow_nan=False))
        assert content["n_leaves"] == tree.n_leaves
        assert "certificates: 4 of 4 hold" in repr(tree)


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "error", "match"),
        [
            ({"p": 0.0}, ValueError, "p must be strictly between 0 and 1"),
            ({"p": [0.5, 1.0, 0.5]}, ValueError, "p must be strictly between 0 and 1"),
            ({"p": [0.5, 0.5]}, ValueError, "p must be a number or have length n = 3"),
            ({"p": math.nan}, ValueError, "p must be"),
            ({"eps": 1.0}, ValueError, "eps"),
            ({"eps": -0.1}, ValueError, "eps"),
            ({"eps": 0.0, "mode": "sampled"}, ValueError, "eps must be greater than 0"),
            ({"delta": 0.0}, ValueError, "delta"),
            ({"max_leaves": 0}, ValueError, "max_leaves"),
            ({"mode": "gini"}, ValueError, "mode must be one of"),
            ({"n": 0}, ValueError, "n must be at least 1"),
            ({"n": 21, "mode": "exact"}, ValueError, "use mode='sampled'"),
            ({"f": [0, 1, 1]}, ValueError, r"f must have 2\*\*n = 8 values"),
            ({"f": [0, 1, 2, 0, 1, 0, 1, 0]}, ValueError, "values 0 and 1"),
            ({"f": lambda x: x}, ValueError, "one value per point"),
            ({"f": lambda x: 2 * x[:, 0]}, ValueError, "values 0 and 1"),
            ({"f": lambda x: ["a"] * len(x)}, TypeError, "values 0 and 1"),
            ({"f": lambda x: np.random.default_rng().integers(0, 2, len(x))}, ValueError, "deterministic"),
            ({"feature_names": ["a"]}, ValueError, "feature_names"),
            ({"reference": 3}, TypeError, "reference"),
            ({"reference": (2, 3.0)}, ValueError, "reference average depth"),
            ({"influence": "gini"}, ValueError, "influence"),
            ({"influence": "uniform", "mode": "sampled"}, ValueError, "influence"),
            ({"rng": "seed"}, TypeError, "rng"),
        ],
    )
    def test_arguments(self, settings, error, match):
        arguments = {"f": majority, "n": 3, **settings}
        # what beartype would refuse for its type is refused by the library itself too
        function = getattr(build_topdown_tree, "__wrapped__", build_topdown_tree)
        with pytest.raises(error, match=match):
            function(arguments.pop("f"), arguments.pop("n"), **arguments)

    def test_points(self):
        tree = build_topdown_tree(majority, 3)
        with pytest.raises(ValueError, match="entries 0 and 1"):
            tree.predict([[0, 1, 2]])
        with pytest.raises(ValueError, match="3 columns"):
            tree.predict([[0, 1]])
        assert tree.predict(np.zeros((0, 3))).shape == (0,)
        assert tree.predict([[True, True, False]])[0] == 1

    def test_influences(self):
        with pytest.raises(ValueError, match="use method='sampled'"):
            influences(parity, 25)
        with pytest.raises(ValueError, match="method"):
            influences(parity, 3, method="guess")

    def test_values_of_any_type(self):
        table = [0, 0, 0, 1]
        for kind in (bool, np.int64, np.float32, object):
            assert build_topdown_tree(np.array(table, dtype=kind), 2, eps=0.0).n_leaves == 3

    def test_the_function_cannot_change_what_is_asked(self):
        def writes(x):
            x[:] = 0
            return np.zeros(len(x))

        assert build_topdown_tree(writes, 3, mode="sampled", rng=0).n_leaves == 1
