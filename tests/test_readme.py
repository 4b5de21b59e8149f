"""What the README shows works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[-1][:40] for block in BLOCKS])
def test_python_blocks_run_and_show_certificates_that_hold(block):
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "holds: " in done.stdout
    assert "FAILS" not in done.stdout


def test_links_and_pictures_exist():
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(targets) >= 6
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert missing == []


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"TODO|MAKE_\w+_TIME|XXX", README)
