import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

from assay.certificate import Certificate
from assay.lab import Cell, CellRecord, Measurement, Store, StoreError

CELL = Cell("games/ssn", "quick", "PRM+ (alternating)", 3, "assay.studies.games.ssn:SemismoothNewton")


def full_record(cell=CELL):
    measurement = Measurement()
    measurement.add("gap", 1e-11, case="uniform 50x100")
    measurement.add("gap", float("nan"), case="normal")
    measurement.add_curve("gap", [1, 2, 3], [1.0, np.inf, np.nan], x_label="seconds", y_label="gap", y_log=True)
    measurement.add_curve("empty", [], [])
    measurement.certify(Certificate("gap", 1e-11, 1e-10), case="normal")
    return CellRecord(cell, "done", measurement, 1.5, "", "c0de", {"threads": 1, "versions": {"numpy": "2"}})


def test_a_record_comes_back_as_it_was(tmp_path):
    store, record = Store(tmp_path), full_record()
    store.write(record)
    again = store.read(CELL)
    assert again.cell == CELL
    assert again.cell.path == CELL.path
    assert (again.status, again.seconds, again.code, again.environment) == ("done", 1.5, "c0de", record.environment)
    assert again.measurement.scalars[0] == record.measurement.scalars[0]
    assert np.isnan(again.measurement.scalars[1].value)
    assert again.measurement.certificates == record.measurement.certificates
    for one, other in zip(again.measurement.curves, record.measurement.curves, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
        assert (one.name, one.x_label, one.y_label, one.y_log) == (
            other.name,
            other.x_label,
            other.y_label,
            other.y_log,
        )


def test_what_is_not_there_is_none(tmp_path):
    assert Store(tmp_path / "nowhere").read(CELL) is None
    assert list(Store(tmp_path / "nowhere").records("games/ssn")) == []


def test_contenders_with_similar_names_have_files_of_their_own():
    names = ["PRM+", "PRM-", "PRM", "prm", "prm/+", "../PRM", "", "ü", "a" * 300, "a" * 301]
    files = {Cell("s/t", "quick", name, 0, "m:c").file_name for name in names}
    assert len(files) == len(names)
    assert not any(".." in file.split("/") for file in files)
    assert max(len(part) for file in files for part in file.split("/")) < 120


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "text"])
def test_a_damaged_file_is_set_aside_and_counts_as_missing(tmp_path, damage):
    store = Store(tmp_path)
    store.write(full_record())
    path = store.path(CELL)
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = b""
    elif damage == "flip":
        content[40] ^= 0xFF  # in the first data page: only the checksum can tell
    else:
        content = b"not a parquet file"
    path.write_bytes(bytes(content))
    assert store.read(CELL) is None
    assert not path.exists()
    [(named, why)] = store.set_aside
    assert named == path
    assert "damaged" in why
    [kept] = (tmp_path / "damaged").iterdir()
    assert kept.read_bytes() == bytes(content)
    store.write(full_record())
    assert store.read(CELL) is not None


def test_a_file_that_holds_another_cell_is_set_aside(tmp_path):
    store = Store(tmp_path)
    other = Cell("games/ssn", "quick", "other", 3, "m:c")
    store.write(full_record(other))
    store.path(CELL).parent.mkdir(parents=True)
    store.path(other).rename(store.path(CELL))
    assert store.read(CELL) is None
    assert "another cell" in store.set_aside[0][1]


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write(full_record())
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left on device"):
        store.write(full_record())
    assert store.read(CELL) is not None
    assert [p.name for p in store.path(CELL).parent.iterdir()] == [store.path(CELL).name]


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use the store"):
        Store(tmp_path / "file").prepare()


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions and limits")
def test_a_read_only_directory_and_a_full_disk_give_one_clear_message(tmp_path):
    code = f"""
import os, resource, signal, sys
from assay.lab import Store, StoreError, Cell, CellRecord, Measurement
import pyarrow.parquet
store = Store({str(tmp_path / "store")!r})
store.prepare()
cell = Cell("a/b", "quick", "c", 0, "m:c")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    store.write(CellRecord(cell, "done", Measurement()))
except StoreError as error:
    print("FULL:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
os.chmod(store.root, 0o555)
os.chmod(store.root / "cells", 0o555)
if os.geteuid() == 0:
    os.seteuid(65534)
for action in (store.prepare, lambda: store.write(CellRecord(cell, "done", Measurement()))):
    try:
        action()
    except StoreError as error:
        print("READ-ONLY:", error)
"""
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents[:2]:
        os.chmod(parent, 0o755)
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("FULL: cannot write to the store")
    assert "too large" in lines[0]
    assert all(line.startswith("READ-ONLY: cannot ") and "Permission denied" in line for line in lines[1:])
    assert not list((tmp_path / "store").rglob("*.tmp"))


def test_locks_exclude_each_other_and_end_with_the_block(tmp_path):
    one, two = Store(tmp_path), Store(tmp_path)
    with contextlib.ExitStack() as stack:
        assert one.try_lock(CELL, stack) is True
        assert two.try_lock(CELL, stack) is False
    with contextlib.ExitStack() as stack:
        assert two.try_lock(CELL, stack) is True


def test_old_temporaries_are_swept_and_young_ones_kept(tmp_path):
    store = Store(tmp_path)
    store.write(full_record())
    directory = store.path(CELL).parent
    old, young = directory / ".x.parquet.1.tmp", directory / ".x.parquet.2.tmp"
    old.write_text("")
    young.write_text("")
    os.utime(old, (0, 0))
    store.prepare()
    assert not old.exists()
    assert young.exists()


def test_an_error_of_the_system_is_not_damage(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write(full_record())

    def too_many(*_, **__):
        raise OSError(24, "Too many open files")

    def no_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr("pyarrow.parquet.read_table", too_many)
    with pytest.raises(StoreError, match=r"cannot read .*\.parquet: Too many open files"):
        store.read(CELL)
    monkeypatch.setattr("pyarrow.parquet.read_table", no_memory)
    with pytest.raises(MemoryError):
        store.read(CELL)
    monkeypatch.undo()
    assert store.set_aside == []
    assert store.read(CELL) is not None


def test_who_only_reads_goes_on_without_a_damaged_file(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write(full_record())
    store.path(CELL).write_text("")

    def read_only(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.replace", read_only)
    assert list(store.records("games/ssn")) == []
    [(path, why)] = store.set_aside
    assert path == store.path(CELL)
    assert "cannot be moved: Read-only file system" in why
    assert path.exists()


def test_a_disk_without_locks_is_one_clear_message(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(StoreError, match=r"cannot lock a cell in the store .*: No locks available"),
        contextlib.ExitStack() as stack,
    ):
        Store(tmp_path).try_lock(CELL, stack)


def test_names_are_no_patterns(tmp_path):
    store = Store(tmp_path)
    store.write(full_record(Cell("games/[s]", "quick", "c", 0, "m:c")))
    store.write(full_record(Cell("games/s", "quick", "c", 0, "m:c")))
    assert [r.cell.study for r in store.records("games/[s]")] == ["games/[s]"]
    assert [r.cell.study for r in store.records("games/[s]", "quick")] == ["games/[s]"]
    assert store.sizes("games/[s]") == ["quick"]
    assert list(store.records("games/*")) == []
