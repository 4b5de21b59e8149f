import assay_probe
import numpy as np
import pytest

from assay import lab
from assay.lab import Cell, Claim, Contender, Measurement, Store, Table, judge, plan, provenance
from assay.lab import cell as cell_module
from assay.lab.cell import execute
from assay.lab.engine import Engine, make_engine


class InlineEngine(Engine):
    """Computes a cell when it is submitted, in this process."""

    def __init__(self, workers=1):
        super().__init__(workers)
        self.records, self.submitted = [], []

    @property
    def capacity(self):
        return self.workers - len(self.records)

    def submit(self, cell):
        self.submitted.append(cell)
        self.records.append(execute(cell))

    def collect(self, patience):
        records, self.records = self.records, []
        return records

    def close(self):
        self.records.clear()


class Small(assay_probe.Steady):
    name = "probe/small"
    sizes = {"quick": {"n": 3, "pause": 0.0}}
    seeds = {"quick": 2}


def run_small(tmp_path, **settings):
    return lab.run([Small], out=tmp_path, engine=InlineEngine(), **settings)


def numbers(tmp_path, study=Small, size="quick"):
    rows = Table.load(Store(tmp_path), study, size).scalars
    rows = rows[rows["metric"] != "seconds_total"]
    return rows.sort_values(["contender", "seed", "case", "metric"]).reset_index(drop=True)


def test_a_run_computes_what_is_missing_and_reuses_the_rest(tmp_path):
    first = run_small(tmp_path, seeds=[0])
    assert (len(first.computed), first.n_reused, first.failures) == (3, 0, [])
    second = run_small(tmp_path)
    assert (len(second.computed), second.n_reused) == (3, 3)
    third = run_small(tmp_path, fresh=True)
    assert (len(third.computed), third.n_reused) == (6, 0)


def test_cells_do_not_depend_on_order_or_company(tmp_path):
    run_small(tmp_path / "a")
    run_small(tmp_path / "b", seeds=[1])
    run_small(tmp_path / "b", seeds=[0])
    assert numbers(tmp_path / "a").equals(numbers(tmp_path / "b"))


def test_contenders_share_the_problem_but_not_their_draws(tmp_path):
    run_small(tmp_path)
    rows = numbers(tmp_path).query("metric == 'norm' and seed == 0").set_index("contender")["value"]
    assert rows["theirs"] == 2 * rows["ours"]
    draws = numbers(tmp_path).query("metric == 'draw'")["value"]
    assert draws.nunique() == len(draws)


def test_a_cell_of_other_code_is_computed_again_and_never_shown(tmp_path, monkeypatch):
    run_small(tmp_path)
    provenance._hash_of_module.cache_clear()
    changed = lambda study: "0" * 64  # noqa: E731
    monkeypatch.setattr("assay.lab.runner.code_hash", changed)
    monkeypatch.setattr("assay.lab.table.code_hash", changed)
    monkeypatch.setattr(cell_module, "code_hash", changed)
    table = Table.load(Store(tmp_path), Small, "quick")
    assert table.n_stale == 6
    assert table.scalars.empty
    again = run_small(tmp_path)
    assert (len(again.computed), again.n_stale) == (6, 6)
    assert Table.load(Store(tmp_path), Small, "quick").n_stale == 0


def test_a_failed_cell_is_recorded_and_tried_again(tmp_path):
    class Broken(Small):
        name = "probe/broken"

    Broken.measure = lambda self, contender, problem, rng: 1 / 0
    cell = Cell("probe/broken", "quick", "ours", 0, f"{assay_probe.__name__}:Broken")
    assay_probe.Broken = Broken
    try:
        record = execute(cell)
        assert record.status == "error"
        assert record.reason == "ZeroDivisionError: division by zero"
        assert "Traceback" in record.message
        Broken.__module__, Broken.__qualname__ = assay_probe.__name__, "Broken"
        for _ in range(2):
            result = lab.run([Broken], out=tmp_path, engine=InlineEngine(), seeds=[0])
            assert len(result.failures) == 3
            assert result.n_reused == 0
        assert set(Table.load(Store(tmp_path), Broken, "quick").cells["status"]) == {"error"}
    finally:
        del assay_probe.Broken


def test_a_worker_with_other_code_refuses():
    record = execute(Cell.of(assay_probe.Steady, "quick", "ours", 0), expected_code="f" * 64)
    assert record.status == "refused"
    assert "install the same version" in record.message


def test_the_code_of_a_study_is_what_it_can_import():
    sources = provenance._sources("assay.studies.games.ssn")
    assert {"assay.studies.games.ssn", "assay.certificate", "assay.lab.study", "assay.games.ssn"} <= set(sources)
    assert not {"assay", "assay.games", "assay.lab", "assay.lab.runner", "assay.cli"} & set(sources)
    assert "assay_probe" in provenance._sources("assay_probe")


def test_names_that_a_package_looks_up_at_run_time_count_for_all_its_modules(tmp_path, monkeypatch):
    package = tmp_path / "lazy_package"
    package.mkdir()
    (package / "__init__.py").write_text("from lazy_package.eager import a\n\ndef __getattr__(name):\n    ...\n")
    for name in ("eager", "late", "study"):
        (package / f"{name}.py").write_text("a = 1\n")
    (package / "user.py").write_text("from lazy_package import a\n")
    (package / "study.py").write_text("from lazy_package import b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(provenance._sources("lazy_package.user")) & {"lazy_package.eager", "lazy_package.late"} == {
        "lazy_package.eager"
    }
    assert "lazy_package.late" in provenance._sources("lazy_package.study")


def test_the_hash_follows_the_source(tmp_path, monkeypatch):
    package = tmp_path / "hashed_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "study.py").write_text("def f():\n    from . import helper\n")
    (package / "helper.py").write_text("x = 1\n")
    (package / "unrelated.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def fresh_hash():
        provenance._hash_of_module.cache_clear()
        return provenance._hash_of_module("hashed_package.study")

    before = fresh_hash()
    (package / "unrelated.py").write_text("x = 2\n")
    assert fresh_hash() == before
    (package / "helper.py").write_text("x = 2\n")
    assert fresh_hash() != before


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"size": "huge"}, "size must be one of quick"),
        ({"seeds": []}, "seeds must be"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"workers": 0}, "workers and threads"),
        ({"threads": 0}, "workers and threads"),
        ({"timeout": 0}, "timeout must be greater than 0"),
        ({"engine": "slurm"}, "engine must be one of"),
        ({"address": "ray://x", "engine": "local"}, "address must be None"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        lab.run([Small], out=tmp_path, **arguments)


def test_progress_is_told_of_every_cell(tmp_path):
    seen = []
    run_small(tmp_path, progress=lambda run, record: seen.append((run.n_finished, record and record.cell.seed)))
    assert seen[0] == (0, None)
    assert [count for count, _ in seen[1:]] == [1, 2, 3, 4, 5, 6]


def test_interruption_keeps_what_is_done(tmp_path):
    def interrupt(run, record):
        if run.n_finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(lab.RunInterruptedError, match="2 of 6 cells are done and stored"):
        run_small(tmp_path, progress=interrupt)
    assert run_small(tmp_path).n_reused == 2


def test_plan_puts_seeds_outermost():
    cells = plan([Small], "quick", [1, 0, 1])
    assert [(c.seed, c.contender) for c in cells[:4]] == [
        (1, "ours"),
        (1, "theirs"),
        (1, "theirs [tuned]"),
        (0, "ours"),
    ]


@pytest.mark.processes
def test_whatever_a_contender_does_the_rest_goes_on(tmp_path):
    result = lab.run([assay_probe.Hostile], out=tmp_path, workers=2, timeout=4)
    status = {record.cell.contender: record.status for record in result.computed}
    assert status == {
        "good": "done",
        "raises": "error",
        "dies": "crashed",
        "sleeps": "timeout",
        "deaf": "timeout",
        "returns nothing": "error",
    }
    reasons = {record.cell.contender: record.reason for record in result.failures}
    assert reasons["raises"] == "RuntimeError: a contender that raises"
    assert "the worker process died" in reasons["dies"]
    assert "gave up after 4 s" in reasons["sleeps"]


def test_threads_are_pinned_in_the_workers(tmp_path):
    pytest.importorskip("torch")
    engine = make_engine("local", workers=1, threads=1)
    with engine:
        engine.submit(Cell.of(assay_probe.Steady, "quick", "theirs", 0))
        records = []
        while not records:
            records = engine.collect(1.0)
    assert records[0].environment["threads"] == 1
    assert records[0].environment["versions"]["numpy"] == np.__version__


# --- claims -----------------------------------------------------------------------------------------------------------


def table_of(values):
    """A table with metric ``m`` of two contenders: values[contender][seed][case]."""
    records = []
    for contender, seeds in values.items():
        for seed, cases in seeds.items():
            measurement = Measurement()
            for case, value in cases.items():
                measurement.add("m", value, case=case)
            records.append(lab.CellRecord(Cell("probe/small", "quick", contender, seed, "m:c"), "done", measurement))
    return Table.of(Small, "quick", records)


def verdict(table, **claim):
    class Judged(Small):
        claims = (Claim("C", "s", "m", "ours", source="derived", **claim),)

    return judge(Judged, table)[0]


def test_claims_are_reduced_over_seeds_and_cases():
    table = table_of({"ours": {0: {"a": 1, "b": 2}, 1: {"a": 3, "b": 10}}})
    assert verdict(table, relation="<=", number=2.5).measured == 2.5
    assert verdict(table, relation="<=", number=2.5).holds
    assert verdict(table, relation="<=", number=9, reduce="max").outcome == "not reproduced"
    assert verdict(table, relation=">=", number=1, reduce="min").holds
    assert verdict(table, relation="<=", number=4, reduce="mean").measured == 4
    only_a = verdict(table, relation="<=", number=3, reduce="max", case="a")
    assert (only_a.n, only_a.lowest, only_a.highest, only_a.holds) == (2, 1, 3, True)


def test_comparisons_are_paired_by_seed_and_case():
    table = table_of({"ours": {0: {"a": 1, "b": 8}, 1: {"a": 5}}, "theirs": {0: {"b": 2, "a": 4}}})
    ratio = verdict(table, relation="<=", number=1, versus="theirs", reduce="max")
    assert (ratio.measured, ratio.lowest, ratio.n) == (4.0, 0.25, 2)
    assert verdict(table, relation="<=", number=0, versus="theirs", compare="difference", reduce="min").measured == -3


def test_nan_and_absence_never_hold():
    table = table_of({"ours": {0: {"a": 1, "b": float("nan")}}})
    for relation in ("<=", ">="):
        failed = verdict(table, relation=relation, number=1, reduce="max")
        assert failed.outcome == "not reproduced"
        absent = verdict(table, relation=relation, number=1, versus="theirs")
        assert (absent.outcome, absent.holds) == ("not measured", False)
    assert (
        judge(type("Full", (Small,), {"claims": (Claim("C", "s", "m", "ours", "<=", 1, "d", sizes=("full",)),)}), table)
        == []
    )


def test_declarations_are_checked():
    with pytest.raises(ValueError, match="relation"):
        Claim("C", "s", "m", "ours", "<", 1, "d")
    with pytest.raises(ValueError, match="reduce"):
        Claim("C", "s", "m", "ours", "<=", 1, "d", reduce="mode")
    with pytest.raises(ValueError, match="compare"):
        Claim("C", "s", "m", "ours", "<=", 1, "d", compare="log")
    measurement = Measurement()
    measurement.add("m", 1)
    with pytest.raises(ValueError, match="already added"):
        measurement.add("m", 2)
    with pytest.raises(ValueError, match="equal length"):
        measurement.add_curve("c", [1, 2], [1])
    with pytest.raises(KeyError, match="no contender 'x'"):
        Small.contender("x")
    assert Contender("a", "method") in {Contender("a", "method")}
