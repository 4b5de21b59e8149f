"""The reader of TSPLIB files: every distance type and layout, the shipped instances, broken files."""

import math

import elkai
import numpy as np
import pytest

from assay.data.tsplib import TSPInstance, load_tsplib, read_tsplib

# burma14 of TSPLIB: degrees.minutes, optimum 3323.
BURMA = """16.47 96.10 16.47 94.44 20.09 92.54 22.39 93.37 25.23 97.24 22.00 96.05 20.47 97.02 17.20 96.29
16.30 97.38 14.05 98.12 16.53 97.38 21.52 95.59 19.41 97.13 20.09 94.55"""
# att48 of TSPLIB: pseudo-Euclidean, optimum 10628.
ATT = """6734 1453 2233 10 5530 1424 401 841 3082 1644 7608 4458 7573 3716 7265 1268 6898 1885 1112 2049 5468 2606
5989 2873 4706 2674 4612 2035 6347 2683 6107 669 7611 5184 7462 3590 7732 4723 5900 3561 4483 3369 6101 1110 5199 2182
1633 2809 4307 2322 675 1006 7555 4819 7541 3981 3177 756 7352 4506 7545 2801 3245 3305 6426 3173 4608 1198 23 2216
7248 3779 7762 4595 7392 2244 3484 2829 6271 2135 4985 140 1916 1569 7280 4899 7509 3239 10 2676 6807 2993 5185 3258
3023 1942"""


def optimum(instance):
    matrix = instance.distances()
    tour = elkai.DistanceMatrix(matrix.astype(int).tolist()).solve_tsp(runs=10)
    return matrix[tour[:-1], tour[1:]].sum()


def planar_file(path, kind, numbers):
    rows = np.array(numbers.split()).reshape(-1, 2)
    lines = [
        "NAME : some",
        "TYPE : TSP",
        f"DIMENSION : {len(rows)}",
        f"EDGE_WEIGHT_TYPE : {kind}",
        "NODE_COORD_SECTION",
    ]
    lines += [f" {k + 1} {x} {y}" for k, (x, y) in enumerate(rows)]
    path.write_text("\n".join([*lines, "EOF", ""]))
    return path


def explicit_file(path, layout, numbers, n=4):
    path.write_text(
        f"NAME: explicit\nTYPE: TSP\nCOMMENT: a: colon\nDIMENSION: {n}\nEDGE_WEIGHT_TYPE: EXPLICIT\n"
        f"EDGE_WEIGHT_FORMAT: {layout}\nDISPLAY_DATA_TYPE: NO_DISPLAY\nEDGE_WEIGHT_SECTION\n{numbers}\nEOF\n"
    )
    return path


@pytest.mark.parametrize("name, n", [("berlin52", 52), ("eil51", 51)])
def test_shipped_instances_have_their_optimum(name, n):
    instance = load_tsplib(name)
    assert (instance.name, instance.n, instance.kind) == (name, n, "EUC_2D")
    assert optimum(instance) == instance.optimal
    matrix = instance.distances()
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix, matrix.T)
    assert not matrix.diagonal().any()
    exact = np.hypot(*(instance.coords[:, None] - instance.coords[None]).transpose(2, 0, 1))
    assert np.abs(matrix - exact).max() <= 0.5
    np.testing.assert_array_equal(matrix, np.rint(matrix))


def test_unknown_instance():
    with pytest.raises(ValueError, match="name must be one of 'berlin52', 'eil51', got 'paris'"):
        load_tsplib("paris")


def test_distances_are_a_new_array():
    instance = load_tsplib("eil51")
    instance.distances()[:] = 0
    assert instance.distances().max() > 0


def test_geographic_distances_give_the_known_optimum(tmp_path):
    instance = read_tsplib(planar_file(tmp_path / "burma14.tsp", "GEO", BURMA), optimal=3323)
    assert optimum(instance) == instance.optimal == 3323
    assert instance.distances()[0, 1] == 153  # as listed with the instance


def test_pseudo_euclidean_distances_give_the_known_optimum(tmp_path):
    assert optimum(read_tsplib(planar_file(tmp_path / "att48.tsp", "ATT", ATT))) == 10628


@pytest.mark.parametrize("kind, expected", [("EUC_2D", 1), ("CEIL_2D", 2), ("ATT", 1)])
def test_rounding(tmp_path, kind, expected):
    instance = read_tsplib(planar_file(tmp_path / "a.tsp", kind, "0 0 1 1 0 9"))
    assert instance.distances()[0, 1] == expected  # sqrt 2 to the nearest, up; sqrt 0.2 up


def test_halves_are_rounded_up(tmp_path):
    assert read_tsplib(planar_file(tmp_path / "a.tsp", "EUC_2D", "0 0 0.5 0 2.5 0")).distances()[0].tolist() == [
        0,
        1,
        3,
    ]


FULL = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]], dtype=float)


@pytest.mark.parametrize(
    "layout, numbers",
    [
        ("FULL_MATRIX", "0 1 2 3\n1 0 4 5\n2 4 0 6\n3 5 6 0"),
        ("FULL_MATRIX", "9999 1 2 3\n1 9999 4 5\n2 4 9999 6\n3 5 6 9999"),
        ("UPPER_ROW", "1 2 3\n4 5\n6"),
        ("UPPER_ROW", "1\n2 3 4 5\n6"),  # line breaks mean nothing
        ("LOWER_ROW", "1\n2 4\n3 5 6"),
        ("UPPER_DIAG_ROW", "0 1 2 3 0 4 5 0 6 0"),
        ("LOWER_DIAG_ROW", "0 1 0 2 4 0 3 5 6 0"),
        ("LOWER_DIAG_ROW", "0\n1.0 0\n2e0 4 0\n3 5 6 0"),
    ],
)
def test_layouts(tmp_path, layout, numbers):
    instance = read_tsplib(explicit_file(tmp_path / "a.tsp", layout, numbers))
    assert (instance.coords, instance.n, instance.name) == (None, 4, "explicit")
    np.testing.assert_array_equal(instance.distances(), FULL)


def test_cities_may_come_in_any_order_and_names_default_to_the_file(tmp_path):
    path = tmp_path / "shuffled.tsp"
    path.write_text(
        "TYPE:TSP\r\nDIMENSION:3\r\nEDGE_WEIGHT_TYPE:EUC_2D\r\nNODE_COORD_SECTION\r\n3 0 9\r\n1 5 5\r\n2 1e1 0\r\n"
    )
    instance = read_tsplib(str(path))
    assert instance.name == "shuffled"
    assert instance.coords.tolist() == [[5, 5], [10, 0], [0, 9]]
    assert instance.optimal is None


HEADER = "NAME: x\nTYPE: TSP\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: EUC_2D\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "EDGE_WEIGHT_TYPE must be one of EUC_2D, CEIL_2D, GEO, ATT, EXPLICIT, got ''"),
        (HEADER.replace("EUC_2D", "XRAY1"), "EDGE_WEIGHT_TYPE must be .*got 'XRAY1'"),
        (HEADER.replace("TSP", "ATSP"), "TYPE must be TSP, got 'ATSP'"),
        (HEADER.replace(": 3", ": three"), "DIMENSION must be an integer, got 'three'"),
        (HEADER.replace("DIMENSION: 3\n", ""), "DIMENSION must be an integer, got None"),
        (HEADER.replace(": 3", ": 100000000000"), "DIMENSION must be from 1 to 100000"),
        (HEADER.replace(": 3", ": 0"), "DIMENSION must be from 1"),
        (HEADER, "NODE_COORD_SECTION must have 9 numbers, got 0"),
        (HEADER + "NODE_COORD_SECTION\n1 0 0\n2 1 1\n", "must have 9 numbers, got 6"),
        (HEADER + "NODE_COORD_SECTION\n1 0 0\n2 1 1\n2 2 2\n", "must number the cities from 1 to 3"),
        (HEADER + "NODE_COORD_SECTION\n1 0 0\n2 1 one\n3 2 2\n", "numbers only.*one"),
        (HEADER + "NODE_COORD_SECTION\n1 0 0\n2 1 nan\n3 2 2\n", "finite numbers only"),
        (HEADER.replace("EUC_2D", "EXPLICIT"), "EDGE_WEIGHT_FORMAT must be one of FULL_MATRIX.*got ''"),
        (
            HEADER.replace("EUC_2D", "EXPLICIT") + "EDGE_WEIGHT_FORMAT: UPPER_ROW\nEDGE_WEIGHT_SECTION\n1 2\n",
            "EDGE_WEIGHT_SECTION must have 3 numbers, got 2",
        ),
        (
            HEADER.replace("EUC_2D", "EXPLICIT")
            + "EDGE_WEIGHT_FORMAT: FULL_MATRIX\nEDGE_WEIGHT_SECTION\n0 1 2 9 0 3 2 3 0\n",
            "symmetric for TYPE TSP",
        ),
        (
            HEADER.replace("EUC_2D", "EXPLICIT").replace(": 3", ": 50000"),
            "DIMENSION must be from 1 to 10000 for EXPLICIT",
        ),
        ("hello world\n", "expected 'KEY: value' or a section, got 'hello world'"),
    ],
)
def test_broken_files_name_themselves(tmp_path, text, message):
    path = tmp_path / "broken.tsp"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_tsplib(path)
    assert str(caught.value).startswith(str(path))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tsplib(tmp_path / "nowhere.tsp")


def test_radius_of_the_sphere(tmp_path):
    quarter = read_tsplib(planar_file(tmp_path / "a.tsp", "GEO", "0 0 0 90 90 0"))
    assert quarter.distances()[0, 1] == math.floor(6378.388 * math.pi / 2 + 1)


def test_repeated_comments_are_comments_and_repeated_keys_must_agree(tmp_path):
    lines = "COMMENT: one\nCOMMENT: two\nTYPE: TSP\nDIMENSION: 3\nDIMENSION: {}\nEDGE_WEIGHT_TYPE: EUC_2D\n"
    points = "NODE_COORD_SECTION\n1 0 0\n2 3 0\n3 0 4\nEOF\n"
    path = tmp_path / "a.tsp"
    path.write_text(lines.format(3) + points)
    assert read_tsplib(path).n == 3
    path.write_text(lines.format(4) + points)
    with pytest.raises(ValueError, match="DIMENSION is given twice, as '3' and as '4'"):
        read_tsplib(path)
    path.write_text(lines.format(3) + points.replace("0 4", "0 1e200"))
    with pytest.raises(ValueError, match="coords must have distances with squares in the range of floats"):
        read_tsplib(path).distances()
    path.write_text(lines.format(3) + points)
    assert read_tsplib(path, optimal=12).optimal == 12.0
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="optimal must be"):
            read_tsplib(path, optimal=wrong)


def test_instances_made_by_hand_are_of_a_known_kind():
    square = np.zeros((3, 3))
    assert TSPInstance("a", None, "EXPLICIT", explicit=square).n == 3
    with pytest.raises(ValueError, match="kind must be one of 'EUC_2D'"):
        TSPInstance("a", np.zeros((3, 2)), "MAN_2D")
    for coords, kind, explicit in (
        (None, "EUC_2D", None),
        (None, "EUC_2D", square),
        (np.zeros((3, 2)), "EXPLICIT", None),
    ):
        with pytest.raises(ValueError, match="the kind EXPLICIT must come with explicit"):
            TSPInstance("a", coords, kind, explicit=explicit)
