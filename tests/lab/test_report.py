import ast
import contextlib
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from assay import Certificate
from assay.lab import Cell, CellRecord, Claim, Contender, Measurement, Paper, Store, Study, Table, write_report
from assay.lab.figures import DARK_TWINS, PALETTE, bar_figure, contender_styles, curve_figures
from assay.lab.provenance import code_hash
from assay.lab.report import example_code
from assay.lab.report.listing import highlight
from assay.lab.report.numbers import duration, format_number, plain_number
from assay.lab.report.pages import StudyPage, how_measured, page_names
from assay.lab.report.results import FigureBlock, SizeResults

VOID = {"meta", "link", "input", "img", "br", "hr"}


class Element:
    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, attributes, []

    def all(self, tag=None, **attributes):
        """Elements below this one, in order, with a tag and with attributes (``class_`` is one of the classes)."""
        for child in self.children:
            if isinstance(child, Element):
                own = {"class_": (child.attributes.get("class") or "").split(), **child.attributes}
                if (tag is None or child.tag == tag) and all(
                    value in own.get(key, ()) if key == "class_" else own.get(key) == value
                    for key, value in attributes.items()
                ):
                    yield child
                yield from child.all(tag, **attributes)

    def one(self, tag=None, **attributes):
        found = list(self.all(tag, **attributes))
        assert len(found) == 1, f"{len(found)} of {tag} {attributes}"
        return found[0]

    @property
    def raw(self):
        """Text below this element, but not that of scripts."""
        return "".join(c if isinstance(c, str) else c.raw for c in self.children if not _is(c, "script", "style"))

    @property
    def text(self):
        """Text with white space joined."""
        return " ".join(self.raw.split())


def _is(child, *tags):
    return isinstance(child, Element) and child.tag in tags


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack = [Element("", {})]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.stack[-1].children.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag, attrs):
        self.stack[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data):
        self.stack[-1].children.append(data)


def read(path):
    reader = Reader()
    reader.feed(Path(path).read_text(encoding="utf-8"))
    assert len(reader.stack) == 1, "every element is closed"
    return reader.stack[0]


@pytest.fixture(scope="module")
def site(fake_studies, fake_store, tmp_path_factory):
    return write_report(fake_studies, fake_store, tmp_path_factory.mktemp("report")).parent


@pytest.fixture(scope="module")
def index(site):
    return read(site / "index.html")


@pytest.fixture(scope="module")
def newton_page(site):
    return read(site / "studies/games-newton.html")


@pytest.fixture(scope="module")
def hostile_page(site):
    return read(site / "studies/transport-hostile.html")


@pytest.fixture(scope="module")
def newton(fake_studies):
    return fake_studies[0]


def rows_of(table):
    return [[cell.text for cell in row.children if _is(cell, "td", "th")] for row in table.one("tbody").all("tr")]


# The site ------------------------------------------------------------------------------------------------


def test_every_address_is_a_file_of_the_site(site):
    pages = [site / "index.html", *site.glob("studies/*.html")]
    assert len(pages) == 5
    for page in pages:
        tree = read(page)
        loaded = [e.attributes[key] for key in ("src", "href") for e in tree.all() if e.attributes.get(key)]
        for address in loaded:
            if address.startswith("https://"):
                continue  # a link to the paper, followed only by a reader
            target, _, fragment = address.partition("#")
            assert (page.parent / target).is_file() if target else True, address
            if not target:
                assert list(tree.all(id=fragment)), f"{address} in {page.name}"
        outside = [e for e in tree.all() if (e.attributes.get("href") or "").startswith("http")]
        assert all(e.tag == "a" for e in outside)
        assert not [e for e in tree.all() if (e.attributes.get("src") or "").startswith("http")]


def test_plotly_is_written_once_and_only_studies_load_it(site):
    assert (site / "assets/plotly.min.js").stat().st_size > 10**6
    pages = [site / "index.html", *site.glob("studies/*.html")]
    assert max(page.stat().st_size for page in pages) < 200_000
    assert "plotly" not in (site / "index.html").read_text()
    assert '<script src="../assets/plotly.min.js" defer>' in (site / "studies/games-newton.html").read_text()


def test_the_templates_and_assets_say_which_scripts_may_run(index):
    policy = index.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    assert "script-src 'self' file:;" in policy
    assert "default-src 'none'" in policy


def test_a_page_has_landmarks_one_first_heading_and_a_skip_link(site):
    for page in (site / "index.html", *site.glob("studies/*.html")):
        tree = read(page)
        tree.one("h1")
        assert tree.one("main").attributes["id"] == "main"
        assert tree.one("a", class_="skip").attributes["href"] == "#main"
        assert tree.one("html").attributes["lang"] == "en"
        ids = [e.attributes["id"] for e in tree.all() if "id" in e.attributes]
        assert len(ids) == len(set(ids))
        for table in tree.all("table"):
            assert table.one("caption").text
            assert all(e.attributes.get("scope") in ("row", "col") for e in table.all("th"))


def test_the_index_counts_claims_certificates_and_failures(index):
    rows = rows_of(index.one("table", class_="methods"))
    assert len(rows) == 4
    newton = rows[0]
    assert newton[0] == "Semismooth Newton for matrix gamesgames/newton, solver"
    # C1 and C2 hold, C3 does not, C4 is not measured; only certificates of the method itself count.
    assert newton[1:] == ["games", "solver", "2", "1", "1", "15 / 15", "full, quick1 failed", newton[-1]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", newton[-1])
    outcomes = {e.attributes["data-family"]: e.attributes["data-outcome"] for e in index.all("tr") if e.attributes}
    assert outcomes == {
        "games": "not-reproduced not-measured cell-failed",
        "graphs": "",
        "transport": "not-reproduced",
        "optim": "not-run",
    }


def test_the_strip_on_the_index_sums_up(index):
    strip = index.one("section", class_="strip")
    text = strip.text
    for words in ("Methods4", "Studied3", "16 of 16", "Claims6", "2 hold", "2 not reproduced", "2 not measured"):
        assert words in text
    assert "Fancy(R) CPU @ 2.10GHz" in text
    assert "failed cells 1" in text


def test_all_claims_that_hold_are_found_by_the_filter(newton, fake_store, tmp_path, monkeypatch):
    monkeypatch.setattr(newton, "claims", newton.claims[:2])
    index = read(write_report([newton], fake_store, tmp_path))
    assert "all-hold" in index.one("tr", **{"data-family": "games"}).attributes["data-outcome"].split()


def test_a_claim_shows_promise_number_range_outcome_and_source(newton_page):
    (full, quick) = (rows_of(table) for table in newton_page.all("table", class_="claims"))
    assert [row[0][:2] for row in full] == ["C1", "C2", "C3", "C4"]
    assert [row[0][:2] for row in quick] == ["C1", "C2", "C3"]
    assert full[0][1:] == ["≤ 1 × 10−10", "3.72 × 10−11", "3.1 × 10−11 to 3.72 × 10−119 values", "holds"]
    assert "highest of gap, Newton" in full[0][0]
    assert "Source: paper, Theorem 1" in full[0][0]
    assert "median of seconds, HiGHS divided by Newton; a timing" in full[1][0]
    assert full[2][1:] == ["≤ 11", "14", "12 to 146 values", "not reproduced"]
    assert full[3][1:] == ["≥ 1 000 000", "none", "none", "not measured"]


def test_a_claim_counts_at_the_largest_size_that_measured_it(newton, tmp_path):
    store = Store(tmp_path)
    for size, steps in (("quick", 10), ("full", 15)):
        measurement = Measurement()
        measurement.add("steps", steps, "uniform")
        store.write(CellRecord(Cell.of(newton, size, "Newton", 0), "done", measurement, code=code_hash(newton)))
    page = StudyPage.load(newton, store, "x.html")
    assert page.verdicts[newton.claims[2]].outcome == "not reproduced"
    store.path(Cell.of(newton, "full", "Newton", 0)).unlink()
    page = StudyPage.load(newton, store, "x.html")
    assert page.verdicts[newton.claims[2]].outcome == "holds"
    assert (page.outcomes.holds, page.outcomes.not_reproduced, page.outcomes.not_measured) == (1, 0, 2)
    assert page.n_elsewhere == 1  # C4 is only judged at full size, which is gone


def test_certificates_are_grouped_with_counts_and_the_tightest_example(newton_page, hostile_page):
    (full, _quick) = (rows_of(table) for table in newton_page.all("table", class_="certificates"))
    ((statement, holds, fails, who),) = full
    assert statement == (
        "duality gap of the strategiesholds: duality gap of the strategies: 3.1e-11 <= 1e-10 "
        "[if the payoff is finite (checked)]"
    )
    assert (holds, fails) == ("9", "18")
    assert who == "HiGHS: 0 of 9Newton: 9 of 9Newton, no line search: 0 of 9"
    ((_, holds, fails, _),) = rows_of(hostile_page.one("table", class_="certificates"))
    assert (holds, fails) == ("1", "1")


def test_the_example_of_a_certificate_is_the_worst_of_the_method(newton, tmp_path):
    store, measurement = Store(tmp_path), Measurement()
    for value in (1.0, 9.5, 2.0):
        measurement.certify(Certificate("error", value, 10.0))
    measurement.certify([Certificate("mass", 0.5, 1.0, ">="), Certificate("mass", math.nan, 1.0, ">=")])
    store.write(CellRecord(Cell.of(newton, "quick", "Newton", 0), "done", measurement, code=code_hash(newton)))
    mass, error = SizeResults.load(newton, store, "quick").certificates
    assert error.example == "holds: error: 9.5 <= 10"
    assert (error.n_holds, error.n_fails, error.broken) == (3, 0, False)
    assert mass.example == "FAILS: mass: nan >= 1"
    assert (mass.n_holds, mass.n_fails, mass.broken) == (0, 2, True)


def test_contenders_are_shown_with_roles_and_versions(newton_page):
    rows = rows_of(next(newton_page.all("table", class_="stack")))
    assert rows[0] == ["HiGHS", "in use today", "linear program, interior point", "highspy 1.2.3", "1.5 s"]
    assert rows[1] == ["Newton", "this method", "tol 1e-10", "assay", "1.5 s"]
    assert rows[2][1] == "ablation"


def test_a_failed_cell_is_shown_collapsed_with_its_traceback(newton_page):
    details = newton_page.one("details", class_="failed")
    assert "open" not in details.attributes
    assert details.one("summary").text == "HiGHS, seed 1 error ValueError: <b>payoff</b> must be finite"
    assert "Traceback (most recent call last):" in details.one("pre").text
    assert not list(details.one("pre").all("b"))


def test_a_study_that_cannot_draw_says_so_and_the_rest_is_there(site):
    page = read(site / "studies/graphs-cannot_draw.html")
    assert "The figures could not be drawn." in page.text
    assert "RuntimeError: no <pencil>" in page.text
    assert "nan" in page.one("table", class_="numbers").text


def test_a_study_without_results_says_how_to_run_it(site):
    page = read(site / "studies/optim-not_run.html")
    assert "has not been run yet" in page.text
    assert "assay run optim/not_run\nassay report" in {code.children[0] for code in page.all("code")}
    assert "is <better> than AdamW" in page.text


def test_provenance_has_versions_seeds_and_the_command(newton_page):
    full, quick = newton_page.all("div", class_="results")
    assert full.one("pre", **{"aria-label": "commands that reproduce this"}).text == (
        "assay run games/newton --size full assay report"
    )
    facts = {e.one("dt").text: e.one("dd").text for e in full.one("dl", class_="provenance").all("div")}
    assert facts["seeds"] == "0, 1, 2"
    assert facts["highspy"] == "1.2.3"
    assert facts["processor"] == "Fancy(R) CPU @ 2.10GHz"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC( to .*)?", facts["computed"])
    assert next(quick.all("p", class_="gist")).text == "5 cells in 7.5 s, 2 seeds; 1 failed."


def test_the_command_names_seeds_that_are_not_the_usual_ones(newton, tmp_path):
    store = Store(tmp_path)
    store.write(CellRecord(Cell.of(newton, "quick", "Newton", 7), "done", Measurement(), code=code_hash(newton)))
    assert SizeResults.load(newton, store, "quick").command == "assay run games/newton --size quick --seeds 7"


def test_citation_and_code_can_be_copied(newton_page):
    listings = {e.one("pre").attributes["aria-label"]: e for e in newton_page.all("div", class_="listing")}
    bibtex = listings["BibTeX"].one("code").text
    assert bibtex.startswith("@inproceedings{games-newton, title = {{A Newton method}}")
    assert "payoff = np.array" in listings["example"].one("code").text
    assert all(len(list(listing.all("button", class_="copy"))) == 1 for listing in listings.values())
    addresses = {a.attributes["href"] for a in newton_page.all("a")}
    assert {"https://arxiv.org/abs/2601.00001", "https://example.org/code"} <= addresses


def test_cells_of_other_code_are_left_out_and_counted(newton, tmp_path):
    store, measurement = Store(tmp_path / "store"), Measurement()
    measurement.add("gap", 1.0)
    store.write(CellRecord(Cell.of(newton, "quick", "Newton", 0), "done", measurement, code="0" * 64))
    index = write_report([newton], store, tmp_path / "report")
    page = read(index.parent / "studies/games-newton.html")
    assert "1 cell was made by other code and is left out. Run the study again:" in page.text
    assert "not-run" in index.read_text()
    assert "cells left out, made by other code 1" in read(index).text


def test_cells_of_a_contender_that_is_gone_are_not_shown(newton, tmp_path):
    store = Store(tmp_path / "store")
    store.write(CellRecord(Cell.of(newton, "quick", "Simplex", 0), "done", Measurement(), code=code_hash(newton)))
    index = write_report([newton], store, tmp_path / "report")
    assert "Simplex" not in (index.parent / "studies/games-newton.html").read_text()


# Escaping ------------------------------------------------------------------------------------------------


def test_nothing_of_a_study_becomes_markup(site, hostile_page, index):
    hostile = """Tags <script>window.broken = 1</script> & "double" 'single' </script>"""
    assert hostile_page.one("h1").text == hostile
    assert hostile_page.one("title").text == f"{hostile} | assay report"
    for tree in (hostile_page, index):
        for script in tree.all("script"):
            attributes = script.attributes
            assert attributes.get("src", "").startswith(("assets/", "../assets/")) or (
                attributes["type"] == "application/json"
            )
        assert not list(tree.all("img"))
        assert not list(tree.one("main").all("i", class_=""))
        assert not [name for e in tree.all() for name in e.attributes if name.startswith("on")]
        assert not [e for e in tree.all("a") if e.attributes["href"].startswith("javascript")]
    texts = {e.text for e in hostile_page.all("span")} | {e.text for e in hostile_page.all("option")}
    assert {'it\'s </script> "best" <b>bold</b>', "<img src=x onerror='window.broken = 1'>"} <= texts
    assert '<b>first</b> & "one"' in texts


def test_figures_are_json_that_cannot_end_its_script(hostile_page):
    script = hostile_page.one("script", class_="figure-data")
    (text,) = script.children
    assert not set("<>&") & set(text)
    content = json.loads(text)
    # Plotly takes tags for markup, so names reach it with their entities and are shown as they are.
    assert content["data"][0]["name"] == 'it\'s &lt;/script&gt; "best" &lt;b&gt;bold&lt;/b&gt;'
    assert content["layout"]["yaxis"]["title"]["text"] == "a &lt; b &amp; c"


# What is written where -----------------------------------------------------------------------------------


def test_one_size_can_be_shown_alone(fake_studies, fake_store, tmp_path):
    index = write_report(fake_studies, fake_store, tmp_path, size="quick")
    page = read(index.parent / "studies/games-newton.html")
    assert len(list(page.all("div", class_="results"))) == 1
    # C4 is a claim about the full size only.
    assert "1 holds 1 not reproduced 1 not measured" in page.one("div", class_="hero").text
    # HiGHS failed on one of two seeds: what it was compared with on the other decides nothing.
    [undecided] = page.all("tr", class_="is-open")
    assert "is fast" in undecided.text
    assert "1 cell failed" in undecided.text


def test_bad_arguments_are_named(newton, fake_store, tmp_path):
    with pytest.raises(ValueError, match="size must be one of quick, full, got 'huge'"):
        write_report([newton], fake_store, tmp_path / "out", size="huge")
    with pytest.raises(ValueError, match="different names, got games/newton more than once"):
        write_report([newton, newton], fake_store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_report([newton], fake_store, tmp_path / "file")


def test_a_report_without_studies_is_a_page(tmp_path):
    index = write_report([], Store(tmp_path / "nothing"), tmp_path / "report")
    assert "There are no studies." in read(index).text
    assert not (tmp_path / "nothing").exists()


def test_writing_again_replaces_our_pages_and_leaves_other_files(fake_studies, fake_store, tmp_path):
    write_report(fake_studies, fake_store, tmp_path)
    (tmp_path / "studies/notes.html").write_text("mine")
    write_report(fake_studies[:1], fake_store, tmp_path)
    assert sorted(p.name for p in (tmp_path / "studies").iterdir()) == ["games-newton.html", "notes.html"]
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["Games/X", "games/a-b", "a/b/c", "../up", "weird/näme?", "games/a b"])
def test_page_names_are_safe_and_unique(name):
    def named(text):
        return type("S", (Study,), {"name": text, "__abstractmethods__": frozenset()})

    names = page_names(map(named, [name, "games/x", "games/a_b", "a/b_c", "up/up", name.replace("/", "-")]))
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"studies/[a-z0-9_-]+\.html", file) for file in names.values())
    assert names["games/x"] == "studies/games-x.html"


# Numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1, "1"),
        (-17, "-17"),
        (0.5, "0.5"),
        (0.123456, "0.1235"),
        (99.999, "100"),
        (12.345, "12.35"),
        (12345.6, "12,346"),
        (123456.7, "1.235e5"),
        (1234567.0, "1,234,567"),
        (1e7, "1e7"),
        (1e-3, "0.001"),
        (9.9e-4, "9.9e-4"),
        (3.14159e-11, "3.142e-11"),
        (-2.5e300, "-2.5e300"),
        (5e-324, "4.941e-324"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "nan"),
        (np.float32(0.25), "0.25"),
    ],
)
def test_numbers_have_four_digits(value, text):
    assert plain_number(value) == text


def test_a_number_that_misses_its_bound_does_not_look_like_it():
    assert plain_number(9.99996, apart_from=10) == "9.99996"
    assert plain_number(10.0, apart_from=10) == "10"
    assert plain_number(1.0000001e-10, apart_from=1e-10) == "1.0000001e-10"
    assert plain_number(np.nextafter(1.0, 2.0), apart_from=1.0) == "1.0000000000000002"
    assert format_number(-1e-12) == '<span class="number">−1\u2009×\u200910<sup>−12</sup></span>'


def test_durations_have_a_unit():
    assert [duration(s) for s in (0.00012, 0.5, 1, 59.9, 61, 3599.7, 3661)] == [
        "0.12 ms",
        "500 ms",
        "1 s",
        "59.9 s",
        "1 min 1 s",
        "1 h 0 min",
        "1 h 1 min",
    ]


def test_how_a_claim_is_measured_in_words():
    claim = Claim("C", "is close", "error", "ours", "<=", 0, "paper", versus="OLS", compare="difference", reduce="max")
    assert how_measured(claim) == "highest of error, ours minus OLS"


# Code to copy --------------------------------------------------------------------------------------------


class Examples:
    """Studies of which only ``demonstrate`` is looked at."""

    class Plain(Study):
        def demonstrate(self):
            """Words."""
            answers = [Certificate(name, 1, 2) for name in "ab"]

            return tuple(answers)

    class Several(Study):
        def demonstrate(
            self,
        ) -> tuple:
            first = Certificate("a", 1, 2)
            return (first, *[Certificate("b", 1, 2)])

    class UsesSelf(Study):
        def demonstrate(self):
            return self.name

    class Early(Study):
        def demonstrate(self):
            if math.pi > 3:
                return ()
            return (1,)

    class Local(Study):
        def demonstrate(self):
            import math

            numbers = np.array([math.pi])
            text = """
  less indented
"""
            return (Certificate(text, float(numbers[0]), 4),)

    class Helper(Study):
        def demonstrate(self):
            def double(number):
                return 2 * number

            return (Certificate("a", double(1), 3),)

    class Nothing(Study):
        def demonstrate(self):
            return ()


def run_script(code):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def test_the_example_runs_when_it_is_pasted(newton):
    code = example_code(newton)
    assert code.startswith("import numpy as np\nfrom assay.certificate import Certificate\n\n# rock, paper, scissors\n")
    assert run_script(code) == "holds: duality gap: 0 <= 1e-10\n"


def test_every_certificate_is_printed_on_a_line():
    assert run_script(example_code(Examples.Plain)) == "holds: a: 1 <= 2\nholds: b: 1 <= 2\n"
    assert run_script(example_code(Examples.Several)) == "holds: a: 1 <= 2\nholds: b: 1 <= 2\n"
    assert run_script(example_code(Examples.Helper)) == "holds: a: 2 <= 3\n"


def test_names_that_the_example_makes_itself_are_not_imported():
    code = example_code(Examples.Local)
    assert code.count("import math") == 1
    assert "import numpy as np" in code
    # White space at the start of a line is content where the line is in a string.
    assert '"""\n  less indented\n"""' in code
    assert "less indented" in run_script(code)


@pytest.mark.parametrize("study", [Examples.UsesSelf, Examples.Early, Examples.Nothing])
def test_what_is_no_sequence_of_statements_stays_a_function(study):
    code = example_code(study)
    assert code.startswith("def demonstrate(self):")
    ast.parse(code)


def test_a_study_without_source_shows_the_import(fake_store, tmp_path):
    namespace = {"Study": Study, "Paper": Paper, "Contender": Contender, "__name__": "assay.lab.study"}
    exec(
        "class Typed(Study):\n"
        "    name = 'games/typed'; title = summary = promise = interface = 'typed'; method = 'assay.games.f'\n"
        "    paper = Paper('t', 'a'); contenders = (Contender('o', 'method'),); claims = (); sizes = {'quick': {}}\n"
        "    def problem(self, size, rng): ...\n"
        "    def measure(self, contender, problem, rng): ...\n"
        "    def demonstrate(self): return ()\n",
        namespace,
    )
    index = write_report([namespace["Typed"]], fake_store, tmp_path)
    page = read(index.parent / "studies/games-typed.html")
    assert page.one("pre", **{"aria-label": "example"}).text == "from assay.games import f"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 1",
        "for i in range(3):\n    print(f'{i!r:>{4}} <b>', \"&\")  # <i>\n",
        'text = """\n<three>\n"""\n\nif True: pass',
        "not python (((\n<b>",
        "\tx = 'unfinished",
        "π = 3.14\r\nprint(π)\n",
        Path(__file__).read_text(encoding="utf-8"),
    ],
)
def test_highlighting_changes_no_character(source):
    reader = Reader()
    reader.feed(f"<pre>{highlight(source)}</pre>")
    (pre,) = reader.stack[0].children
    assert pre.raw == source
    assert all(child.tag == "span" for child in pre.children if isinstance(child, Element))


# Figures -------------------------------------------------------------------------------------------------


def table_of(study, *curves, scalars=()):
    """Table of one cell of each contender that is named; curves are ``(contender, name, x, y, options)``."""
    records = []
    for seed, contender in {(s, c) for c, *_ in curves for s in (0,)} | {(s, c) for c, s, *_ in scalars}:
        measurement = Measurement()
        for name, x, y, options in (rest for c, *rest in curves if c == contender and seed == 0):
            measurement.add_curve(name, x, y, **options)
        for metric, case, value in (rest for c, s, *rest in scalars if (c, s) == (contender, seed)):
            measurement.add(metric, value, case)
        records.append(CellRecord(Cell.of(study, "quick", contender, seed), "done", measurement, code=code_hash(study)))
    return Table.of(study, "quick", records)


def test_the_method_is_bold_ablations_are_dashed_and_colours_differ(newton):
    styles = contender_styles(newton)
    assert styles["Newton"] == {"color": PALETTE[0], "dash": "solid", "width": 3}
    assert styles["Newton, no line search"]["dash"] == "dash"
    assert len({style["color"] for style in styles.values()}) == 3


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_can_be_seen_on_both_pages():
    for light, dark in DARK_TWINS.items():
        assert (_luminance("#fbfaf7") + 0.05) / (_luminance(light) + 0.05) >= 3
        assert (_luminance(dark) + 0.05) / (_luminance("#14161a") + 0.05) >= 4.5
    assert tuple(DARK_TWINS) == PALETTE


def test_a_curve_on_a_logarithmic_axis_leaves_out_what_it_cannot_show(newton):
    table = table_of(newton, ("Newton", "gap", [0, 1, 2], [1.0, 0.1, 0.0], {"y_log": True, "x_log": True}))
    (figure,) = curve_figures(newton, table)
    np.testing.assert_array_equal(figure.plot.data[0].y, [np.nan, 0.1, np.nan])
    assert "2 points are zero or negative" in figure.caption
    assert (figure.plot.layout.xaxis.type, figure.plot.layout.yaxis.type) == ("log", "log")
    (figure,) = curve_figures(newton, table_of(newton, ("Newton", "gap", [0, 1], [1.0, 0.0], {})))
    np.testing.assert_array_equal(figure.plot.data[0].y, [1.0, 0.0])
    assert "zero" not in figure.caption


def test_cases_become_a_menu_of_the_page(newton):
    table = table_of(
        newton,
        ("Newton", "gap", [1, 2], [2, 1], {"case": "a <b>"}),
        ("HiGHS", "gap", [1, 2], [3, 1], {"case": "a <b>"}),
        ("Newton", "gap", [1, 2], [4, 1], {"case": "c"}),
    )
    (figure,) = curve_figures(newton, table)
    block = FigureBlock.of(figure)
    assert block.menus == [{"label": "case", "options": ["a <b>", "c"], "active": 0}]
    assert "updatemenus" not in block.data["layout"]
    assert "template" not in block.data["layout"]
    visible = [option["args"][0]["visible"] for option in block.data["menus"][0]]
    by_case = dict(zip(["a", "c"], visible, strict=True))
    assert sum(by_case["a"]) == 2
    assert sum(by_case["c"]) == 1
    json.dumps(block.data, allow_nan=False)


def test_a_long_curve_is_thinned_without_losing_its_extremes(newton):
    rng = np.random.default_rng(0)
    y = rng.normal(size=50_000)
    y[31_234] = 100.0
    y[10_000:20_000] = np.nan
    for x_log in (False, True):
        table = table_of(newton, ("Newton", "noise", np.arange(1, 50_001), y, {"x_log": x_log}))
        (figure,) = curve_figures(newton, table)
        line = figure.plot.data[0]
        assert len(line.x) <= 2000
        assert (line.x[0], line.x[-1]) == (1, 50_000)
        assert np.nanmax(line.y) == 100.0
        assert np.nanmin(line.y) == np.nanmin(y)
        assert np.isnan(line.y).any()
        assert (np.diff(line.x) > 0).all()


def test_a_figure_of_many_long_curves_stays_small_enough_for_a_browser(newton):
    x, y = np.arange(5000), np.random.default_rng(0).normal(size=5000)
    table = table_of(newton, *(("Newton", "noise", x, y, {"case": str(case)}) for case in range(500)))
    (figure,) = curve_figures(newton, table)
    lengths = [len(line.x) for line in figure.plot.data]
    assert len(lengths) == 500
    assert min(lengths) > 300
    assert sum(lengths) <= 200_000


def test_another_seed_is_drawn_when_the_first_is_missing(newton, tmp_path):
    measurement = Measurement()
    measurement.add_curve("gap", [1, 2], [2, 1])
    record = CellRecord(Cell.of(newton, "quick", "Newton", 4), "done", measurement, code=code_hash(newton))
    (figure,) = curve_figures(newton, Table.of(newton, "quick", [record]))
    assert "seed 4" in figure.caption
    assert curve_figures(newton, Table.of(newton, "quick", [])) == []


def test_bars_are_medians_with_whiskers_over_categories(newton):
    scalars = [("Newton", seed, "time", case, value) for seed, case, value in _TIMES]
    table = table_of(newton, scalars=scalars)
    figure = bar_figure(newton, table, "time", title="Time", caption="c", x_label="rows", y_label="time (s)")
    (bar,) = figure.plot.data
    assert list(bar.x) == ["50", "100"]
    assert figure.plot.layout.xaxis.type == "category"
    assert figure.plot.layout.xaxis.title.text == "rows"
    np.testing.assert_allclose(bar.y, [2.0, 5.0])
    np.testing.assert_allclose(bar.error_y.array, [7.0, 0.0])
    np.testing.assert_allclose(bar.error_y.arrayminus, [1.0, 0.0])
    chosen = bar_figure(newton, table, "time", title="", caption="", y_label="", y_log=True, cases=["100"])
    assert list(chosen.plot.data[0].x) == ["100"]
    assert chosen.plot.layout.yaxis.type == "log"


_TIMES = [(0, "50", 1.0), (1, "50", 2.0), (2, "50", 9.0), (0, "100", 5.0)]


def test_many_studies_make_a_small_index(newton, fake_store, tmp_path):
    studies = [
        type("Many", (newton,), {"name": f"games/many_{i}", "__module__": newton.__module__}) for i in range(100)
    ]
    index = write_report(studies, fake_store, tmp_path)
    assert len(rows_of(read(index).one("table", class_="methods"))) == 100
    assert index.stat().st_size < 400_000
