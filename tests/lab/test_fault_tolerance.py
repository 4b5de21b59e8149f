"""Real processes, killed and disturbed: what was finished stays, and the final table is that of a quiet run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import assay_probe
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

STUDY, SEEDS = "probe/steady", 12


def command(out, *more):
    arguments = ["run", STUDY, "--seeds", f"0:{SEEDS}", "--workers", "2", "--quiet", "--out", str(out)]
    return [sys.executable, "-m", "assay", *arguments, *more]


def finish(out):
    return subprocess.run(command(out), capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    done = finish(out)
    assert done.returncode == 0, done.stderr
    table = assay_probe.numbers(out)
    assert len(table) == 3 * SEEDS * 3
    return table


def files(out):
    return sorted(out.rglob("*.parquet"))


def children_of(pid):
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in listing.read_text().split()]
    except OSError:  # already gone, or no /proc
        return []


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed_at_ten_random_moments_and_resumed(tmp_path, undisturbed):
    moments = random.Random(0)
    survivors, orphans = [], set()
    for _ in range(10):
        run = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.3, 2.5))
        orphans.update(children_of(run.pid))
        run.send_signal(signal.SIGKILL)
        run.wait()
        for path, content in survivors:
            assert path.read_bytes() == content, "a finished cell was touched again"
        survivors = [(path, path.read_bytes()) for path in files(tmp_path)]
    done = finish(tmp_path)
    assert done.returncode == 0, done.stderr
    assert assay_probe.numbers(tmp_path).equals(undisturbed)
    for path, content in survivors:
        assert path.read_bytes() == content
    if sys.platform == "linux":
        deadline = time.monotonic() + 10
        while any(map(alive, orphans)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(alive, orphans)), "workers outlived the run that started them"


def test_truncated_and_deleted_files_are_computed_again(tmp_path, undisturbed):
    assert finish(tmp_path).returncode == 0
    paths = files(tmp_path)
    paths[0].write_bytes(paths[0].read_bytes()[:100])
    paths[1].unlink()
    untouched = {path: path.stat().st_mtime_ns for path in paths[2:]}
    done = finish(tmp_path)
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert "set aside and computed again" in done.stderr
    assert len(list((tmp_path / "damaged").iterdir())) == 1
    assert assay_probe.numbers(tmp_path).equals(undisturbed)
    assert {path: path.stat().st_mtime_ns for path in paths[2:]} == untouched


def test_two_runners_share_a_store(tmp_path, undisturbed):
    runners = [
        subprocess.Popen(
            [argument for argument in command(tmp_path) if argument != "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [runner.communicate(timeout=120) for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0], said
    computed = [int(err.split(" cells computed")[0].split()[-1]) for _, err in said]
    assert sum(computed) == 3 * SEEDS, "a cell was computed twice, or not at all"
    assert assay_probe.numbers(tmp_path).equals(undisturbed)


def test_ctrl_c_says_how_to_resume(tmp_path, undisturbed):
    run = subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not files(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "are done and stored" in err
    assert f"resume with: assay run {STUDY} --size quick --seeds 0:{SEEDS} --out {tmp_path}" in err
    assert "Traceback" not in err
    assert finish(tmp_path).returncode == 0
    assert assay_probe.numbers(tmp_path).equals(undisturbed)


def test_a_store_that_cannot_be_written_is_one_clear_message(tmp_path):
    (tmp_path / "file").write_text("")
    done = finish(tmp_path / "file")
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot use the store")
    assert len(done.stderr.splitlines()) == 1
