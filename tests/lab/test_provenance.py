"""What belongs to the code of a study: everything that can change its numbers, and nothing else."""

import sys

import pytest

import assay
from assay.lab import provenance


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package of files, ``{name: text}``, and a function that gives the files that a module depends on."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, files):
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        provenance._spec.cache_clear()
        return lambda module: {
            key.removeprefix(f"{name}.") for key in provenance._sources(f"{name}.{module}") if key.startswith(name)
        }

    return make


def test_the_code_of_a_study_is_what_it_can_import():
    sources = provenance._sources("assay.studies.games.ssn")
    assert {"assay.studies.games.ssn", "assay.certificate", "assay.lab.measurement", "assay.games.ssn"} <= set(sources)
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
        provenance._hash_of_modules.cache_clear()
        return provenance._hash_of_modules(("hashed_package.study",))

    before = fresh_hash()
    (package / "unrelated.py").write_text("x = 2\n")
    assert fresh_hash() == before
    (package / "helper.py").write_text("x = 2\n")
    assert fresh_hash() != before


@pytest.mark.parametrize(
    "statement",
    [
        "import many.helper",
        "import many.helper as h",
        "from many import helper",
        "from many import helper as h",
        "from many.helper import f",
        "from many.helper import *",
        "from . import helper",
        "from .helper import f as g",
        "from .deep import inner",
        "from .deep.inner import f",
        "import importlib\nimportlib.import_module('many.helper')",
        "def f():\n    if 0:\n        import many.helper",
        "try:\n    import nothing\nexcept ImportError:\n    from .helper import f",
    ],
)
def test_every_way_to_import_counts(package, statement):
    files = {"__init__.py": "", "helper.py": "", "deep/__init__.py": "", "deep/inner.py": "from ..helper import f\n"}
    sources = package("many", files | {"study.py": statement})
    assert "helper" in sources("study")
    assert "other" not in sources("study")


def test_what_a_package_passes_on_is_followed_by_the_name_that_it_gets(package):
    sources = package(
        "passing",
        {
            "__init__.py": "from .one import a as b\nfrom .two import b as a\n",
            "one.py": "a = 1\n",
            "two.py": "b = 2\n",
            "study.py": "from passing import a\n",
        },
    )
    assert sources("study") == {"study", "two"}


def test_both_sources_of_a_name_that_has_a_replacement_count(package):
    sources = package(
        "fallback",
        {
            "__init__.py": "try:\n    from .fast import f\nexcept ImportError:\n    from .slow import f\n",
            "fast.py": "",
            "slow.py": "",
            "study.py": "from fallback import f\n",
        },
    )
    assert sources("study") == {"study", "fast", "slow"}


def test_a_name_that_a_package_changes_needs_the_package(package):
    sources = package(
        "changing",
        {
            "__init__.py": "from .one import f\nf = print(f)\n",
            "one.py": "",
            "study.py": "from changing import f\n",
        },
    )
    assert sources("study") == {"changing", "study", "one"}


def test_a_package_that_is_imported_whole_needs_all_that_it_looks_up(package):
    sources = package(
        "lazy",
        {
            "__init__.py": "def __getattr__(name): ...\n",
            "late.py": "",
            "sub/__init__.py": "from .deep import x\n",
            "sub/deep.py": "",
            "study.py": "import lazy\n",
        },
    )
    assert sources("study") == {"lazy", "late", "sub", "sub.deep", "study"}


def test_namespace_packages_do_not_depend_on_what_is_loaded(package):
    sources = package("spread", {"study.py": "def f():\n    from spread import helper\n", "helper.py": ""})
    assert sources("study") == {"study", "helper"}


def test_data_files_that_a_module_names_count(package):
    files = {
        "__init__.py": "",
        "study.py": "from . import reader\n",
        "reader.py": "TABLE, FOLDER = 'table.csv', 'instances'\n",
        "table.csv": "1",
        "unnamed.csv": "1",
        "instances/a.txt": "1",
        "instances/deep/b.txt": "1",
        "instances/b.pyc": "1",
    }
    sources = package("keeping", files)
    named = {"reader: table.csv", "reader: instances/a.txt", "reader: instances/deep/b.txt"}
    assert sources("study") == {"study", "reader"} | named
    assert "assay.data.tsplib: tsplib_instances/berlin52.tsp" in provenance._sources("assay.data.tsplib")


def test_extension_modules_count_and_are_not_parsed(package):
    ending = provenance.importlib.machinery.EXTENSION_SUFFIXES[0]
    sources = package("built", {"__init__.py": "", "study.py": "from built import core\n", f"core{ending}": "\0ELF"})
    assert sources("study") == {"study", "core"}


def test_only_what_measures_counts_of_the_lab(package):
    sources = provenance._sources("assay_probe")
    assert {"assay.lab.measurement", "assay.lab.timing", "assay.certificate"} <= set(sources)
    assert not provenance._is_not_measuring("assay.laboratory")
    assert provenance._is_not_measuring("assay.lab")
    assert provenance._is_not_measuring("assay.lab.report.site")


def test_a_base_class_of_another_package_is_part_of_a_study(package, monkeypatch):
    package("borrowing", {"__init__.py": "", "study.py": "import assay_probe\nclass S(assay_probe.Steady): ...\n"})
    from borrowing.study import S

    try:
        assert provenance.packages(S) == ("assay", "borrowing", "assay_probe")
        alone = provenance._hash_of_modules(("borrowing.study", "assay.lab.measurement"))
        assert provenance.code_hash(S) != alone
    finally:
        for name in ("borrowing.study", "borrowing"):
            sys.modules.pop(name, None)


def test_the_version_is_that_of_the_code_that_runs(monkeypatch):
    monkeypatch.setattr("assay.lab.provenance.__version__", "9.9")
    assert provenance.environment(1)["assay"] == "9.9"
    assert assay.__version__ != "9.9"
    assert provenance.environment(1, "numpy")["versions"]["numpy"]
