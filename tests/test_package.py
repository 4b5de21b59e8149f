import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.extras import MissingExtraError, import_extra

ROOT = Path(__file__).parents[1]


def fresh_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_importing_assay_loads_no_heavy_library():
    loaded = fresh_python("import sys, assay; print(*sorted({m.split('.')[0] for m in sys.modules}))").split()
    assert not {"torch", "scipy", "numpy", "pandas", "sklearn", "numba"} & set(loaded)


def test_listing_the_studies_loads_neither_torch_nor_scipy():
    code = "import sys; from assay import studies; studies.available(); print(*sys.modules)"
    assert not {"torch", "scipy", "sklearn", "pandas", "numba", "plotly"} & set(fresh_python(code).split())


def test_the_command_line_starts_without_a_heavy_library():
    code = "import sys, assay.cli.app; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    assert not {"torch", "scipy", "numpy", "pandas", "plotly", "pyarrow", "joblib"} & set(fresh_python(code).split())


def test_families_are_attributes():
    assert fresh_python("import assay; print(assay.games.solve_matrix_game.__name__)").strip() == "solve_matrix_game"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        __import__("assay").nothing


def test_a_missing_extra_is_one_line_that_names_it():
    with pytest.raises(MissingExtraError, match=r'pip install "assay\[peers\]"$') as caught:
        import_extra("no_such_library", extra="peers")
    assert "\n" not in str(caught.value)


def test_a_broken_dependency_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import a_dependency_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a_dependency_that_is_missing") as caught:
        import_extra("broken_library", extra="peers")
    assert not isinstance(caught.value, MissingExtraError)


def test_layers_are_kept():
    command = [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml"]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, env=os.environ | {"COLUMNS": "200"}
    )
    assert run.returncode == 0, run.stdout + run.stderr
