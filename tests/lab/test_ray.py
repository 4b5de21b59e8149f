"""The same cells on a Ray cluster of two workers, started here."""

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import assay_probe
import pytest

from assay import lab
from assay.lab import Store, Table

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs ray: pip install "assay[ray]"'),
]


@pytest.fixture(scope="module")
def cluster():
    """A head without processors and two workers with one each, so that every cell runs on a worker node."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


def test_a_cluster_gives_the_numbers_of_this_machine(tmp_path, cluster):
    local = lab.run([assay_probe.Steady], out=tmp_path / "local", workers=2)
    remote = lab.run([assay_probe.Steady], out=tmp_path / "ray", engine="ray", address=cluster, workers=2)
    assert remote.failures == []
    assert len(remote.computed) == len(local.computed) == 12
    assert assay_probe.numbers(tmp_path / "ray").equals(assay_probe.numbers(tmp_path / "local"))


def test_the_command_line_reaches_the_cluster_and_failures_stay_single(tmp_path, cluster):
    arguments = ["run", "probe/hostile", "--engine", "ray", "--address", cluster, "--workers", "2", "--timeout", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "assay", *arguments, "--out", str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1, done.stderr
    cells = Table.load(Store(tmp_path), assay_probe.Hostile, "quick").cells.set_index("contender")["status"]
    assert cells["good"] == "done"
    assert cells["raises"] == "error"
    assert cells["dies"] == "crashed"
    assert cells["sleeps"] == "timeout"
    assert cells["deaf"] == "timeout"
    assert "a contender that raises" in done.stderr


def test_workers_with_other_code_refuse(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("assay.lab.engine.code_hash", lambda study: "f" * 64)
    refused = lab.run([assay_probe.Steady], out=tmp_path, engine="ray", address=cluster, workers=2, seeds=[0])
    assert {record.status for record in refused.failures} == {"refused"}
    assert "install the same version on all machines" in refused.failures[0].reason
    assert Path(tmp_path).exists()


def test_an_address_where_nobody_answers_is_said_at_once(tmp_path):
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for full in (address, f"ray://{address}"):
            with pytest.raises(ConnectionError, match=f"^no Ray cluster answers at {full}: "):
                lab.run([assay_probe.Steady], out=tmp_path, engine="ray", address=full)
    with pytest.raises(ConnectionError, match="no Ray cluster answers"):
        lab.run([assay_probe.Steady], out=tmp_path, engine="ray", address="127.0.0.1:99999")
