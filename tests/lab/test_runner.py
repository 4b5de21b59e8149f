import math
import os
import signal
import time

import assay_probe
import numpy as np
import pytest

from assay import lab, studies
from assay.lab import Cell, Claim, Contender, Measurement, Paper, Store, Table, judge, plan, provenance
from assay.lab import cell as cell_module
from assay.lab.cell import execute
from assay.lab.engine import Engine, LocalEngine, make_engine


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
    assert assay_probe.numbers(tmp_path / "a", Small).equals(assay_probe.numbers(tmp_path / "b", Small))


def test_contenders_share_the_problem_but_not_their_draws(tmp_path):
    run_small(tmp_path)
    rows = assay_probe.numbers(tmp_path, Small).query("metric == 'norm' and seed == 0").set_index("contender")["value"]
    assert rows["theirs"] == 2 * rows["ours"]
    draws = assay_probe.numbers(tmp_path, Small).query("metric == 'draw'")["value"]
    assert draws.nunique() == len(draws)


def test_a_cell_of_other_code_is_computed_again_and_never_shown(tmp_path, monkeypatch):
    run_small(tmp_path)
    provenance._hash_of_modules.cache_clear()
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"size": "huge"}, "size must be one of quick"),
        ({"seeds": []}, "seeds must be"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"seeds": iter(())}, "seeds must be"),
        ({"workers": 0}, "workers and threads"),
        ({"threads": 0}, "workers and threads"),
        ({"timeout": 0}, "timeout must be greater than 0"),
        ({"timeout": float("nan")}, "timeout must be greater than 0"),
        ({"timeout": float("inf")}, "timeout must be greater than 0 and at most 1e\\+08 seconds"),
        ({"engine": "slurm"}, "engine must be one of"),
        ({"address": "ray://x", "engine": "local"}, "address must be None"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        lab.run([Small], out=tmp_path, **arguments)


def test_a_cell_of_another_number_of_threads_is_computed_again(tmp_path):
    run_small(tmp_path, seeds=[0])
    engine = InlineEngine()
    engine.threads = 2
    again = lab.run([Small], out=tmp_path, engine=engine, seeds=[0])
    assert (len(again.computed), again.n_stale, again.n_reused) == (3, 3, 0)


@pytest.mark.parametrize("seeds", [np.arange(2), (seed for seed in (0, 1)), [np.int32(1), 0, 1]])
def test_seeds_may_be_any_integers(tmp_path, seeds):
    assert run_small(tmp_path, seeds=seeds).failures == []
    assert {type(cell.seed) for cell in run_small(tmp_path).cells} == {int}
    assert run_small(tmp_path).n_reused == 6


def test_seeds_must_be_integers(tmp_path):
    for seeds in ([0.5], ["0"], [True]):
        with pytest.raises(TypeError, match="seeds must be an integer"):
            run_small(tmp_path, seeds=seeds)


def test_a_study_that_is_named_twice_is_run_once(tmp_path):
    result = lab.run([Small, Small], out=tmp_path, engine=InlineEngine(workers=4), seeds=[0])
    assert len(result.cells) == len(result.computed) == 3


def test_a_class_that_workers_cannot_import_is_refused_before_anything_is_computed(tmp_path):
    class Local(Small):
        pass

    with pytest.raises(ValueError, match=r"Local must be a class at the top of a module that workers can import"):
        lab.run([Local], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_more_workers_are_started_than_there_are_cells(tmp_path, monkeypatch):
    wanted = []

    def remember(name, *, workers, **_):
        wanted.append(workers)
        return InlineEngine()

    monkeypatch.setattr("assay.lab.runner.make_engine", remember)
    lab.run([Small], out=tmp_path, seeds=[0], workers=64)
    assert wanted == [3]


def test_what_cannot_be_stored_is_a_failed_cell_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(Small, "measure", lambda self, contender, problem, rng: measured[contender])
    measured = {name: Measurement() for name in ("ours", "theirs", "theirs [tuned]")}
    measured["theirs"].add("a half of a pair \udc80", 1.0)
    result = run_small(tmp_path, seeds=[0])
    [failure] = result.failures
    assert failure.cell.contender == "theirs"
    assert failure.reason.startswith("what was measured cannot be stored: UnicodeEncodeError")
    assert Store(tmp_path).read(failure.cell).status == "error"
    assert len(result.computed) == 3


def test_a_cell_that_leaves_the_interpreter_or_says_too_much_is_a_record(monkeypatch):
    cell = Cell.of(Small, "quick", "ours", 0)

    def raise_it(error):
        def measure(self, contender, problem, rng):
            raise error

        monkeypatch.setattr(Small, "measure", measure)
        return execute(cell)

    assert raise_it(SystemExit(3)).reason == "SystemExit: 3"
    long = raise_it(RuntimeError("x" * 10**6))
    assert len(long.message) < 30_000
    assert "characters left out" in long.message
    assert len(long.reason) == 300
    monkeypatch.setattr(Small, "measure", lambda *_: Measurement(certificates=["no pair"]))
    assert execute(cell).status == "error"


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs POSIX timers")
@pytest.mark.parametrize("swallowed", [Exception, BaseException])
def test_a_study_that_catches_everything_still_runs_out_of_time(monkeypatch, swallowed):
    def measure(self, contender, problem, rng):
        for _ in range(2 if swallowed is BaseException else 1):
            try:
                time.sleep(5)
            except swallowed:
                if swallowed is Exception:
                    return Measurement()
        return Measurement()

    monkeypatch.setattr(Small, "measure", measure)
    before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    record = execute(Cell.of(Small, "quick", "ours", 0), timeout=0.2)
    if swallowed is Exception:
        assert (record.status, record.reason) == ("timeout", "gave up after 0.2 s")
    assert time.monotonic() - started < 4
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


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


@pytest.mark.processes
def test_a_worker_that_died_unnoticed_does_not_take_the_run_down():
    cells = [Cell.of(assay_probe.Steady, "quick", "ours", seed) for seed in range(3)]
    with LocalEngine(2) as engine:
        engine.submit(cells[0])
        assert [record.status for record in collected(engine, 1)] == ["done"]
        kill_workers(engine)  # while they are idle
        engine.submit(cells[1])
        assert [record.status for record in collected(engine, 1)] == ["done"]
        engine.submit(Cell.of(assay_probe.Hostile, "quick", "sleeps", 0))
        kill_workers(engine)
        engine.submit(cells[2])  # the pool knows by now, the engine does not
        assert engine.capacity == 0
        assert {record.cell.contender: record.status for record in collected(engine, 2)} == {
            "sleeps": "crashed",
            "ours": "done",
        }


def collected(engine, n):
    records, deadline = [], time.monotonic() + 60
    while len(records) < n and time.monotonic() < deadline:
        records += engine.collect(1.0)
    return records


def kill_workers(engine):
    for pid in list(engine._pool._processes):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while engine._pool._flags.broken is None and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.processes
def test_nothing_is_started_beside_a_suspect():
    with LocalEngine(2) as engine:
        engine._suspects = [Cell.of(assay_probe.Steady, "quick", "ours", 0)]
        assert engine.capacity == 0
        engine.collect(0.0)
        assert engine.capacity == 0
        assert len(collected(engine, 1)) == 1
        assert engine.capacity == 2


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


def test_the_name_of_a_case_is_no_pattern():
    table = table_of({"ours": {0: {"n [50]": 1, "n 5": 2, "other": 3}}})
    assert verdict(table, relation="<=", number=9, case="n [50]").lowest == 1
    assert verdict(table, relation="<=", number=9, case="n *").n == 2


def test_ratios_to_zero_and_to_negative_numbers():
    for ours, theirs, measured in ((1, 0, math.inf), (-1, -0.0, -math.inf), (0, 0, math.nan), (1, -2, math.nan)):
        table = table_of({"ours": {0: {"a": ours}}, "theirs": {0: {"a": theirs}}})
        found = verdict(table, relation="<=", number=1, versus="theirs")
        assert (found.measured, found.n) == (pytest.approx(measured, nan_ok=True), 1)
        assert found.holds == (measured == -math.inf)


def test_a_claim_about_all_runs_does_not_hold_when_one_failed():
    done = table_of({"ours": {0: {"a": 1}}, "theirs": {0: {"a": 2}, 1: {"a": 2}}})
    crashed = lab.CellRecord(Cell("probe/small", "quick", "ours", 1, "m:c"), "crashed", message="gone")
    table = Table.of(Small, "quick", [*done.records, crashed])
    for versus in (None, "theirs"):
        kept = verdict(table, relation="<=", number=9, reduce="max", versus=versus)
        assert (kept.outcome, kept.holds, kept.n, kept.n_failed) == ("not measured", False, 1, 1)
        assert verdict(table, relation="<=", number=0.1, reduce="max", versus=versus).outcome == "not reproduced"


def test_a_verdict_shows_digits_enough():
    table = table_of({"ours": {0: {"a": 1.0000001}}})
    assert verdict(table, relation="<=", number=1).shown == ("<= 1", "1.0000001")
    assert verdict(table, relation=">=", number=1).shown == (">= 1", "1.0000001")


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
    for arguments in ((3, 1.0), ("m", 1.0, 50)):
        with pytest.raises(TypeError, match="must be a string, got"):
            measurement.add(*arguments)
    with pytest.raises(TypeError, match="x_label must be a string"):
        measurement.add_curve("c", [1], [1], x_label=None)
    with pytest.raises(TypeError, match="certificates must be Certificate objects, got 'gap'"):
        measurement.certify(["gap"])


@pytest.mark.parametrize(
    "declared, message",
    [
        ({"name": "../up/here"}, "name of .* must be family/method"),
        ({"name": "games"}, "name of .* must be family/method"),
        ({"name": "games/.."}, "name of .* must be family/method"),
        ({"name": "games/a b"}, "name of .* must be family/method"),
        ({"sizes": {"a/b": {}}}, "sizes of probe/small must be named in letters"),
        ({"sizes": {"medium": {}}}, "seeds of probe/small must say how many seeds the size 'medium' has"),
        ({"contenders": (Contender("a", "method"),) * 2, "claims": ()}, "contenders of .*, got a more than once"),
        ({"claims": (Claim("C", "s", "m", "ours", "<=", 1, "d"),) * 2}, "claims of .*, got C more than once"),
        ({"claims": (Claim("C", "s", "m", "our", "<=", 1, "d"),)}, "claim C of probe/small is about 'our', which is"),
        ({"claims": (Claim("C", "s", "m", "ours", "<=", 1, "d", versus="x"),)}, "claim C of .* is about 'x', which is"),
    ],
)
def test_a_study_that_contradicts_itself_is_refused(tmp_path, declared, message):
    odd = type("Odd", (Small,), declared)
    with pytest.raises(ValueError, match=message):
        lab.run([odd], out=tmp_path)


def test_all_studies_fit_together():
    for study in studies.available().values():
        study.check_declarations()


def test_papers_are_cited_with_one_full_stop():
    paper = Paper("What is it?", "A. Author et al.", venue="ICML 2026 (oral)", arxiv="2601.00001")
    assert paper.cite() == "A. Author et al. What is it?. ICML 2026 (oral). arXiv:2601.00001."
    assert paper.year == "2026"
    assert Paper("T", "A", venue="in press").year == ""
