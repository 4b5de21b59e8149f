"""Where cells are kept: one Parquet file each, whole or not there.

A file is written under a temporary name and renamed, so a reader never sees half of one, and a run that is
killed loses only what it was computing. A file that cannot be read is set aside, never deleted, and its cell
counts as missing. A lock per cell, which the kernel drops when its holder dies, keeps two runners at the same
store from computing the same cell.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.certificate import Certificate
from assay.lab.cell import Cell, CellRecord
from assay.lab.measurement import Curve, Measurement, Scalar

try:
    import fcntl
except ImportError:  # pragma: no cover  Windows: two runners at one store then repeat each other's work
    fcntl = None  # type: ignore[assignment]

__all__ = ["Store", "StoreError"]

_FORMAT = 1
_STALE_TEMPORARY_SECONDS = 3600.0

_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("case", pa.string()),
        ("value", pa.float64()),
        ("x", pa.list_(pa.float64())),
        ("y", pa.list_(pa.float64())),
        ("text", pa.string()),
    ]
)


class StoreError(OSError):
    """The store cannot be used: not a directory, not writable, or the disk is full."""


class Store:
    """A directory of finished cells.

    Two objects, also of different processes, may share a directory; locks work between processes of one machine, and
    on network disks as far as those implement ``flock``.

    Parameters
    ----------
    root : path
        The directory; created when something is written.

    Examples
    --------
    >>> import tempfile
    >>> from assay.lab import Cell, CellRecord, Measurement, Store
    >>> store = Store(tempfile.mkdtemp())
    >>> cell = Cell("games/ssn", "quick", "HiGHS", 0, path="assay.studies.games.ssn:SemismoothNewton")
    >>> measurement = Measurement()
    >>> measurement.add("gap", 1e-12)
    >>> store.write(CellRecord(cell, "done", measurement))
    >>> store.read(cell).measurement.scalars
    [Scalar(metric='gap', value=1e-12, case='')]
    """

    def __init__(self, root: str | os.PathLike[str]):
        self.root = Path(root)
        #: What was set aside since this object was made, as ``(file, why)``.
        self.set_aside: list[tuple[Path, str]] = []

    def path(self, cell: Cell) -> Path:
        """File of a cell."""
        return self.root / "cells" / cell.file_name

    def prepare(self) -> None:
        """Create the directory and see that it can be written.

        Raises
        ------
        StoreError
            If it cannot; the message says why.
        """
        probe = self.root / f".probe-{uuid.uuid4().hex}"
        with self._reporting("use"):
            (self.root / "cells").mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        for left_over in self.root.glob("cells/**/.*.tmp"):
            with contextlib.suppress(OSError):  # another runner may have renamed it just now
                if time.time() - left_over.stat().st_mtime > _STALE_TEMPORARY_SECONDS:
                    left_over.unlink()

    def write(self, record: CellRecord) -> None:
        """Store a record in the place of an older one.

        Raises
        ------
        StoreError
            If the file cannot be written; an older file is then still whole.
        """
        target = self.path(record.cell)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        with self._reporting("write to"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    pq.write_table(_to_table(record), file, write_page_checksum=True)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise

    def read(self, cell: Cell) -> CellRecord | None:
        """Record of a cell, or None when there is none; a damaged file is set aside."""
        path = self.path(cell)
        record = self._read_file(path)
        if record is not None and record.cell != cell:
            self._set_aside(path, f"holds another cell: {record.cell}")
            return None
        return record

    def records(self, study: str, size: str | None = None) -> Iterator[CellRecord]:
        """Yield all records of a study that are there, in the order of their file names."""
        pattern = f"{glob.escape(study)}/{'*' if size is None else glob.escape(size)}/*/*.parquet"
        for path in sorted((self.root / "cells").glob(pattern)):
            record = self._read_file(path)
            if record is not None:
                yield record

    def sizes(self, study: str) -> list[str]:
        """Sizes of a study that have at least one file."""
        paths = (self.root / "cells").glob(f"{glob.escape(study)}/*/*/*.parquet")
        return sorted({path.parent.parent.name for path in paths})

    def try_lock(self, cell: Cell, stack: contextlib.ExitStack) -> bool:
        """Lock a cell until ``stack`` is closed (or this process dies); False when another runner holds it."""
        if fcntl is None:  # pragma: no cover
            return True
        name = self.root / "locks" / (cell.file_name.removesuffix(".parquet").replace("/", "__") + ".lock")
        with self._reporting("lock a cell in"):
            name.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as opened:
                file = opened.enter_context(name.open("ab"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                stack.push(opened.pop_all())
        return True

    def _read_file(self, path: Path) -> CellRecord | None:
        try:
            with path.open("rb") as file:
                return _from_table(pq.read_table(file, page_checksum_verification=True))
        except FileNotFoundError:
            return None
        except MemoryError:
            raise
        except Exception as error:  # pyarrow raises many kinds for damaged files
            # An error of the system (no permission, too many open files, a network disk that is gone) has a number, and
            # says nothing about the file.
            if isinstance(error, OSError) and error.errno is not None:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
            self._set_aside(path, f"damaged: {' '.join(str(error).split())[:200]}")
            return None

    def _set_aside(self, path: Path, why: str) -> None:
        name = f"{path.relative_to(self.root / 'cells').as_posix().replace('/', '__')}.{uuid.uuid4().hex[:8]}"
        target = self.root / "damaged" / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        except FileNotFoundError:  # another runner was faster
            return
        except OSError as error:  # who only reads the store can do without this file
            why += f" (and cannot be moved: {error.strerror})"
        self.set_aside.append((path, why))

    @contextlib.contextmanager
    def _reporting(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot {verb} the store {self.root}: {error.strerror or error}") from error


def _to_table(record: CellRecord) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"kind": "scalar", "name": s.metric, "case": s.case, "value": s.value} for s in record.measurement.scalars
    ]
    for c in record.measurement.curves:
        style = {"x_label": c.x_label, "y_label": c.y_label, "x_log": c.x_log, "y_log": c.y_log}
        rows.append({"kind": "curve", "name": c.name, "case": c.case, "x": c.x, "y": c.y, "text": json.dumps(style)})
    for case, certificate in record.measurement.certificates:
        rows.append({"kind": "certificate", "name": "", "case": case, "text": certificate.to_json()})
    columns = {name: [row.get(name) for row in rows] for name in _SCHEMA.names}
    header = {
        "format": _FORMAT,
        "study": record.cell.study,
        "size": record.cell.size,
        "contender": record.cell.contender,
        "seed": record.cell.seed,
        "path": record.cell.path,
        "status": record.status,
        "seconds": record.seconds,
        "message": record.message,
        "code": record.code,
        "environment": record.environment,
        "finished": record.finished,
    }
    return pa.table(columns, schema=_SCHEMA.with_metadata({"assay": json.dumps(header)}))


def _from_table(table: pa.Table) -> CellRecord:
    header = json.loads((table.schema.metadata or {})[b"assay"])
    if header["format"] != _FORMAT:
        raise ValueError(f"format {header['format']} is not {_FORMAT}")
    measurement = Measurement()
    for row in table.to_pylist():
        if row["kind"] == "scalar":
            measurement.scalars.append(Scalar(row["name"], row["value"], row["case"]))
        elif row["kind"] == "curve":
            style = json.loads(row["text"])
            measurement.curves.append(Curve(row["name"], np.array(row["x"]), np.array(row["y"]), row["case"], **style))
        else:
            measurement.certificates.append((row["case"], Certificate.from_json(row["text"])))
    cell = Cell(header["study"], header["size"], header["contender"], header["seed"], header["path"])
    return CellRecord(
        cell,
        header["status"],
        measurement,
        header["seconds"],
        header["message"],
        header["code"],
        header["environment"],
        header["finished"],
    )
