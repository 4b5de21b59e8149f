import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from assay import studies
from assay.cli.app import app
from assay.lab import Claim, Study


def assay(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_version_and_help():
    assert assay("--version").stdout.startswith("assay 0.")
    for arguments in ([], ["run"], ["games"], ["games", "solve"], ["report"], ["transport", "align"]):
        done = assay(*arguments, "--help")
        assert done.exit_code == 0
        assert "Usage" in done.output


def test_list_names_every_study_with_its_promise():
    done = assay("list")
    assert done.exit_code == 0
    for name in ("games/ssn", "optim/spectra", "transport/gromov_wasserstein", "graphs/heatmap_tour", "probe/steady"):
        assert name in done.stdout
    content = json.loads(assay("list", "--json", "--family", "games").stdout)
    assert {entry["family"] for entry in content} == {"games"}
    assert all(entry["promise"] and entry["paper"] and entry["method"] for entry in content)


def test_an_unknown_family_or_method_is_one_line_on_stderr():
    done = assay("list", "--family", "gmaes")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --family must be one of")
    done = assay("show", "games/snn")
    assert done.exit_code == 2
    assert "did you mean games/ssn" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["games/ssn", "ssn", "solve_matrix_game", "assay.games.solve_matrix_game"])
def test_show_finds_a_method_by_any_of_its_names(name):
    done = assay("show", name)
    assert done.exit_code == 0
    assert "solve_matrix_game" in done.stdout
    assert "holds" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "optim/spectra",
        "games/ssn",
        "supervised/linear_core",
        "supervised/structured_linear_core",
        "transport/gromov_wasserstein",
        "graphs/heatmap_tour",
    ],
)
def test_every_method_demonstrates_a_certificate_that_holds(name):
    content = json.loads(assay("show", name, "--json").stdout)
    assert content["certificates"]
    assert all(certificate["holds"] for certificate in content["certificates"])
    assert content["documentation"]
    assert "import" in content["example"]


def test_every_example_runs_when_it_is_pasted():
    from assay import studies
    from assay.lab.report import example_code

    for study in studies.available().values():
        done = subprocess.run([sys.executable, "-c", example_code(study)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{study.name}: {done.stderr}"
        assert "Certificate(" in done.stdout or "holds: " in done.stdout, study.name


def test_run_prints_claims_and_reuses_cells(tmp_path):
    done = assay("run", "probe/steady", "--seeds", "0,1", "--workers", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "6 cells computed, 0 reused, 0 failed" in done.stderr
    assert "2 holds, 0 not reproduced, 0 not measured" in done.stdout
    again = assay("run", "probe/steady", "--seeds", "0:2", "--workers", 1, "--out", tmp_path)
    assert "0 cells computed, 6 reused, 0 failed" in again.stderr
    fresh = assay("run", "probe/steady", "--seeds", "0", "--workers", 1, "--out", tmp_path, "--fresh", "--quiet")
    assert fresh.stderr == ""


def test_a_claim_that_fails_is_said_and_exits_with_1(tmp_path, monkeypatch):
    import assay_probe

    from assay.lab import Claim

    wrong = Claim("C9", "ours is tiny", "norm", "ours", "<=", 1e-9, "derived")
    monkeypatch.setattr(assay_probe.Steady, "claims", (wrong,))
    for command in ("check", "run"):
        done = assay(command, "probe/steady", "--workers", 1, "--out", tmp_path)
        assert done.exit_code == 1
        assert "not reproduced" in done.stdout
        done = assay(command, "probe/steady", "--workers", 1, "--no-fail-on-claims", "--out", tmp_path)
        assert done.exit_code == 0
        assert "not reproduced" in done.stdout


def test_failed_cells_are_listed_and_exit_with_1(tmp_path):
    done = assay("run", "probe/hostile", "--workers", 1, "--timeout", 1, "--out", tmp_path)
    assert done.exit_code == 1
    assert "failed: probe/hostile [quick] raises, seed 0: error: RuntimeError: a contender that raises" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "probe/steady", "--seeds", "5:2"], "--seeds must be a range"),
        (["run", "probe/steady", "--seeds", "x"], "--seeds must be a range"),
        (["run", "probe/steady", "--size", "huge"], "size must be one of quick, full"),
        (["run", "probe/steady", "--engine", "slurm"], "engine must be one of"),
        (["run", "probe/steady", "--timeout", "-1"], "timeout must be greater than 0"),
        (["run", "probe/unknown"], "there is no study or method"),
        (["games", "solve", "no_such_file.csv"], "no_such_file.csv"),
        (["graphs", "tour", "no_such_file.tsp"], "no_such_file.tsp"),
        (["transport", "align", "no_such_file.gml", "other.gml"], "no_such_file.gml"),
        (["supervised", "linear-core", "no_such_file.csv", "--target", "y"], "no_such_file.csv"),
    ],
)
def test_bad_usage_is_one_line_and_exits_with_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = assay(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_usage_errors_of_the_parser_exit_with_2():
    assert assay("games", "solve").exit_code == 2
    assert assay("run", "probe/steady", "--workers", "0").exit_code == 2
    assert assay("nonsense").exit_code == 2


def test_report_of_an_empty_store_says_how_to_fill_it(tmp_path):
    done = assay("report", "--out", tmp_path)
    assert done.exit_code == 0
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "report").rglob("*.html")]
    assert any("assay run games/ssn" in page for page in pages)


def test_a_broken_plug_in_is_a_warning(tmp_path):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text("[assay.studies]\na/b = no_such_module:X\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['list']; import assay.cli as c; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "the study 'a/b' could not be loaded: No module named 'no_such_module'" in done.stderr
    assert "games/ssn" in done.stdout


class Nameless(Study):
    """A study of another distribution that has no name."""


class Contradictory(Nameless):
    name = "probe/contradictory"
    contenders = ()
    claims = (Claim("C1", "s", "m", "nobody", "<=", 1, "derived"),)
    sizes = {}


@pytest.mark.parametrize(
    "study, message",
    [
        (Nameless, "must have a name, e.g. name = 'probe/entered'"),
        (Contradictory, "claim C1 of probe/contradictory is about 'nobody', which is not a contender"),
        (print, "is not a subclass of assay.lab.Study"),
    ],
)
def test_a_plug_in_that_does_not_fit_is_a_warning(monkeypatch, study, message):
    class EntryPoint:
        name, value = "probe/entered", "plugin:Study"

        def load(self):
            return study

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint()])
    with pytest.warns(RuntimeWarning, match=f"'probe/entered' could not be loaded: .*{re.escape(message)}"):
        found = studies.available.__wrapped__()
    assert "games/ssn" in found
    assert "probe/entered" not in found
