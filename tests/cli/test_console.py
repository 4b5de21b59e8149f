"""What the command line does with terminals, pipes and files, in processes of its own where it matters."""

import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from assay import Certificate
from assay.cli import console as console_module
from assay.cli.app import app
from assay.cli.console import certificate_table
from assay.cli.studying import _command
from assay.lab import Store

PAYOFF = "0,1,-1\n-1,0,1\n1,-1,0\n"


def assay(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(*arguments):
    return [sys.executable, "-m", "assay", *map(str, arguments)]


def process(*arguments, **environment):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["nonsense"], "error: No such command 'nonsense'; see: assay --help"),
        (["--json", "list"], "error: No such option '--json'"),
        (["list", "games"], "error: Got unexpected extra argument (games); see: assay list --help"),
        (["games", "nonsense"], "error: No such command 'nonsense'; see: assay games --help"),
        (["games", "solve"], "error: Missing argument 'GAME'; see: assay games solve --help"),
        (["run", "probe/steady", "--workers", "0"], "error: Invalid value for '--workers': 0 is not in the range x>=1"),
    ],
)
def test_what_the_parser_finds_wrong_is_one_line(arguments, line):
    done = process(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_without_a_command_there_is_help():
    for arguments in ([], ["games"]):
        done = assay(*arguments)
        assert done.stdout.count("Usage: assay") + done.stdout.count("Usage: root") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("arguments", ["list", "list --json", "run probe/steady --seeds 0 --workers 1 --quiet"])
def test_a_reader_that_leaves_changes_nothing(tmp_path, arguments):
    words = shlex.join(command(*arguments.split())) + (f" --out {tmp_path}" if "run" in arguments else "")
    script = f"{words} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}; {words} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n0\n"
    assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_json_is_whole_in_every_encoding(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace"))
    console_module.print_json({"Erdős": ["ß", "half a pair \udc80"]})
    assert json.loads(raw.getvalue().decode(encoding)) == {"Erdős": ["ß", "half a pair \udc80"]}
    assert raw.getvalue().count(b"\n") == 1


def test_a_terminal_that_cannot_show_a_letter_shows_its_number():
    done = process("show", "Erdős", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith(r"error: there is no study or method 'Erd\u0151s'")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("width", [40, 60, 80])
def test_claims_and_methods_can_be_read_on_a_narrow_terminal(tmp_path, monkeypatch, width):
    monkeypatch.setattr("assay.cli.studying.out", lambda: Console(width=width))
    monkeypatch.setattr("assay.cli.catalogue.out", lambda: Console(width=width))
    done = assay("run", "probe/steady", "--seeds", "0,1", "--workers", 1, "--out", tmp_path)
    words = " ".join(done.stdout.split())
    assert "probe/steady C1 holds ours is smaller promised <= 1, measured 0.5 (0.5 .. 0.5)" in words
    assert "all certificates hold" in words
    listed = assay("list", "--family", "probe").stdout
    assert "probe/steady  solver\n    numbers are numbers" in re.sub(" +\n", "\n", listed)
    assert max(map(len, (done.stdout + listed).splitlines())) <= width


def test_colours_are_left_out_when_that_is_asked_for():
    assert "\x1b[3" not in process("list", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_numbers_that_differ_look_different():
    recorder = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    recorder.print(certificate_table([Certificate("s", 1 + 1e-9, 1)]))
    assert "1.000000001" in recorder.export_text()


def test_show_gives_strict_json_whatever_the_example_prints(monkeypatch):
    import assay_probe

    def demonstrate(self):
        print("while it works")
        return [Certificate("one is at most two", 1, 2)]

    monkeypatch.setattr(assay_probe.Steady, "demonstrate", demonstrate)
    content = json.loads(assay("show", "probe/steady", "--json").stdout)
    assert content["prints"] == "while it works\n"
    assert content["signature"] == "interleave(functions, *, repeats=5, warmup=1, budget=inf, clock='wall')"
    shown = assay("show", "probe/steady").stdout
    assert "prints\nwhile it works\n" in shown
    assert "compared   theirs; theirs [tuned]" in shown


@pytest.mark.parametrize("method", ["assay.games.nothing", "no_such_package.f", "nothing"])
def test_a_study_of_a_method_that_is_not_there_is_one_line(monkeypatch, method):
    import assay_probe

    monkeypatch.setattr(assay_probe.Steady, "method", method)
    done = assay("show", "probe/steady")
    assert done.exit_code == 2
    assert f"the study probe/steady is about {method!r}, which cannot be imported" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_answers_go_where_they_are_asked_to_go(tmp_path):
    payoff = tmp_path / "payoff.csv"
    payoff.write_text(PAYOFF)
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    assert assay("games", "solve", payoff, "--out", tmp_path / "link.json").exit_code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["gap"] <= 1e-10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "payoff.csv", "real.json"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    payoff, pipe = tmp_path / "payoff.csv", tmp_path / "pipe"
    payoff.write_text(PAYOFF)
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        assert assay("games", "solve", payoff, "--out", pipe).exit_code == 0
        said, _ = reader.communicate(timeout=60)
    assert json.loads(said)["gap"] <= 1e-10
    assert pipe.is_fifo()


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    payoff = tmp_path / "payoff.csv"
    payoff.write_text(PAYOFF)
    monkeypatch.setattr("assay.data.read_game", None)  # never called
    for place, message in ((tmp_path, "is a directory"), (tmp_path / "no" / "x.json", "there is no directory")):
        done = assay("games", "solve", payoff, "--out", place)
        assert done.exit_code == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_disk_that_is_full_is_said_of_the_file_that_was_asked_for(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "some temporary name")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*answer\.json'"):
        console_module._write(tmp_path / "answer.json", "{}")


def test_a_report_of_a_store_with_a_damaged_file_says_so(tmp_path):
    assert assay("run", "probe/steady", "--seeds", "0", "--workers", 1, "--out", tmp_path).exit_code == 0
    [damaged, *_] = sorted((tmp_path / "cells").rglob("*.parquet"))
    damaged.write_text("")
    done = assay("report", "--out", tmp_path, "--quiet")
    assert done.exit_code == 0
    assert f"warning: {damaged} is damaged" in " ".join(done.stderr.split())


def test_a_store_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    assert assay("run", "probe/steady", "--seeds", "0", "--workers", 1, "--out", tmp_path).exit_code == 0

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pyarrow.parquet.read_table", forbidden)
    for arguments in (["report"], ["run", "probe/steady"]):
        done = assay(*arguments, "--out", tmp_path)
        assert done.exit_code == 2
        assert re.match(r"error: cannot read .*\.parquet: Permission denied\n$", done.stderr)
    assert list(Store(tmp_path).root.glob("damaged")) == []


def test_the_command_that_resumes_is_whole_and_can_be_pasted():
    line = _command("run", "a/b", size="full", out="my results", engine="ray", address=None, workers=4, timeout=2.5)
    assert line == "assay run a/b --size full --out 'my results' --engine ray --workers 4 --timeout 2.5"
    assert _command("check", engine="local", threads=1, seeds=None) == "assay check"


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
@pytest.mark.parametrize("wait_for", ["start", "workers", "cells"])
def test_ctrl_c_at_a_terminal_reaches_all_processes_and_none_complains(tmp_path, wait_for):
    # So many cells that the run cannot be over before the signal comes, however busy the machine is.
    words = command("run", "probe/steady", "--size", "full", "--seeds", "0:200", "--workers", "2", "--out", tmp_path)
    run = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    signs = {"start": "cells", "workers": "locks/*.lock", "cells": "cells/**/*.parquet"}
    while not list(tmp_path.glob(signs[wait_for])) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    said_where = r"interrupted: \d+ of 600 cells are done and stored\nresume with: assay run .*\n"
    assert re.fullmatch(said_where if wait_for != "start" else rf"{said_where}|interrupted\n", said), said
