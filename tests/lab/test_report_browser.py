"""The report in a real browser: it is opened from disk, operated, and looked at."""

import json
import re
import shutil
from collections import Counter

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

from assay.lab import write_report  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
if CHROMIUM is None or CHROMEDRIVER is None:
    pytest.skip("needs a browser: apt install chromium chromium-driver", allow_module_level=True)

pytestmark = pytest.mark.browser

PAGES = {
    "index": "index.html",
    "newton": "studies/games-newton.html",
    "cannot_draw": "studies/graphs-cannot_draw.html",
    "hostile": "studies/transport-hostile.html",
    "not_run": "studies/optim-not_run.html",
}

# Boxes of all text that can be seen, cut to what their surroundings let through.
VISIBLE_TEXT = """
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.textContent.trim() || parent.closest("script, style, option, select, .unseen, [hidden]")) continue;
  if (!parent.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const rect of range.getClientRects()) {
    const box = { left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom };
    for (let up = parent; up && up !== document.body; up = up.parentElement) {
      const style = getComputedStyle(up), edge = up.getBoundingClientRect();
      if (style.clipPath !== "none") box.right = box.left;
      if (style.overflowX !== "visible" && !(up instanceof SVGElement && up.tagName !== "svg")) {
        box.left = Math.max(box.left, edge.left);
        box.right = Math.min(box.right, edge.right);
        box.top = Math.max(box.top, edge.top);
        box.bottom = Math.min(box.bottom, edge.bottom);
      }
    }
    if (box.right - box.left > 1 && box.bottom - box.top > 1) found.push({ node, parent, box });
  }
}
"""

OVERLAPS = (
    VISIBLE_TEXT
    + """
const clashes = [];
found.forEach((one, i) => found.slice(i + 1).forEach((other) => {
  if (one.node === other.node) return;
  const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
  const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
  if (wide > 2 && high > 3) clashes.push(one.node.textContent.trim() + " | " + other.node.textContent.trim());
}));
return [found.length, clashes];
"""
)

LINES = "return [...arguments[0].querySelectorAll('.scatterlayer .js-line')].map((e) => e.getAttribute('d'))"

# Contrast of every text with what is behind it, as WCAG defines it; returns those that are too weak.
WEAK_TEXT = (
    VISIBLE_TEXT
    + """
const parse = (text) => {
  const numbers = text.match(/[\\d.]+/g).map(Number);
  return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
};
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  const layers = [];
  for (let up = element; up; up = up.parentElement) {
    const layer = parse(getComputedStyle(up).backgroundColor);
    layers.unshift(layer);
    if (layer.alpha === 1) break;
  }
  return layers.reduce((below, layer) => layer.rgb.map((v, i) => v * layer.alpha + below[i] * (1 - layer.alpha)),
    [255, 255, 255]);
};
const weak = new Set();
for (const { node, parent } of found) {
  const style = getComputedStyle(parent);
  const svg = parent instanceof SVGElement;
  const front = luminance(parse(svg ? style.fill : style.color).rgb), back = luminance(behind(parent));
  const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  const size = parseFloat(style.fontSize);
  if (contrast < (size >= 24 ? 3 : 4.5)) weak.add(node.textContent.trim() + " " + contrast.toFixed(2));
}
return [...weak];
"""
)


def start(tmp_path, *, scripts=True):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    if not scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    return webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))


@pytest.fixture(scope="module")
def site(fake_studies, fake_store, tmp_path_factory):
    return write_report(fake_studies, fake_store, tmp_path_factory.mktemp("report")).parent


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


class Browser:
    """The driver with the few things that the tests do with it."""

    def __init__(self, driver, site):
        self.driver, self.site = driver, site

    def open(self, page, width=1280, scheme="light", fragment=""):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer(scheme)
        self.driver.get("about:blank")
        self.driver.get((self.site / PAGES[page]).as_uri() + fragment)
        self.wait_for_figures()

    def prefer(self, scheme, media=""):
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},  # a smooth scroll is too slow for a click
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features, "media": media})

    def wait_for_figures(self):
        self.wait(
            """const shown = [...document.querySelectorAll("figure.plot")].filter((f) => f.offsetWidth);
            return shown.every((f) => f.dataset.drawn && f.querySelector("svg.main-svg"))"""
        )

    def wait(self, script):
        WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda d: d.execute_script(script))

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def titles(self):
        return [e.text for e in self.all("table.methods tbody th a") if e.is_displayed()]


@pytest.fixture
def browser(driver, site):
    browser = Browser(driver, site)
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    browser.open("index")
    browser.run("localStorage.clear()")
    yield browser
    # Whatever a test did: nothing was reported on the console, and nothing but files was asked for.
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def test_the_index_is_sorted_by_a_click_and_back(browser):
    header = browser.one("table.methods thead th")
    button = header.find_element(By.TAG_NAME, "button")
    original = browser.titles()
    button.click()
    assert browser.titles() == sorted(original)
    assert header.get_attribute("aria-sort") == "ascending"
    button.click()
    assert browser.titles() == sorted(original, reverse=True)
    assert header.get_attribute("aria-sort") == "descending"
    assert len(browser.all("th[aria-sort]")) == 1


def test_numbers_are_sorted_as_numbers_with_the_keyboard(browser):
    button = browser.one('thead button[title="claims that hold"]')
    button.send_keys(Keys.ENTER)
    assert browser.titles()[0] == "Semismooth Newton for matrix games"
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.SPACE)
    assert browser.titles()[-1] == "Semismooth Newton for matrix games"
    assert browser.run("return document.activeElement") == button
    browser.run(
        """const cells = document.querySelectorAll("table.methods tbody td:nth-child(4)");
        [10, 9, 100, -1].forEach((value, i) => { cells[i].dataset.value = value; cells[i].textContent = value; });"""
    )
    button.click()
    assert [e.text for e in browser.all("table.methods tbody td:nth-child(4)")] == ["100", "10", "9", "-1"]


def test_the_index_is_filtered_by_text_family_and_outcome(browser):
    text, count = browser.one("#filter-text"), browser.one(".count")
    assert count.text == "4 methods"
    text.send_keys("NEWTON zero-sum")
    assert browser.titles() == ["Semismooth Newton for matrix games"]
    assert count.text == "1 of 4 methods"
    text.clear()
    text.send_keys("torch")
    assert browser.titles() == ["A schedule that nobody has run"]
    text.clear()
    text.send_keys(" ")
    Select(browser.one("#filter-family")).select_by_visible_text("graphs")
    assert browser.titles() == ["A study that cannot draw"]
    Select(browser.one("#filter-family")).select_by_index(0)
    Select(browser.one("#filter-outcome")).select_by_visible_text("a claim is not reproduced")
    assert len(browser.titles()) == 2
    Select(browser.one("#filter-outcome")).select_by_visible_text("a cell failed")
    assert browser.titles() == ["Semismooth Newton for matrix games"]
    text.send_keys("nothing like this")
    assert browser.titles() == []
    assert browser.one(".nothing").text.startswith("No method matches.")
    browser.one("button.reset").click()
    assert len(browser.titles()) == 4


def test_a_filter_is_in_the_address_and_families_link_to_it(browser):
    Select(browser.one("#filter-family")).select_by_visible_text("games")
    browser.one("#filter-text").send_keys("gap")
    assert browser.driver.current_url.endswith("index.html#q=gap&family=games")
    browser.driver.refresh()
    assert browser.one("#filter-text").get_attribute("value") == "gap"
    assert browser.titles() == ["Semismooth Newton for matrix games"]
    browser.open("hostile")
    browser.all(".kicker a")[1].click()
    assert browser.one(".count").text == "1 of 4 methods"


@pytest.mark.parametrize("page", ["newton", "hostile"])
def test_figures_are_drawn(browser, page):
    browser.open(page)
    figures = [f for f in browser.all("figure.plot") if f.is_displayed()]
    assert len(figures) == {"newton": 4, "hostile": 1}[page]
    for figure in figures:
        assert not figure.find_elements(By.CSS_SELECTOR, ".modebar [data-title*='hare'], .modebar a[href]")
        shapes = figure.find_elements(By.CSS_SELECTOR, ".scatterlayer .js-line, .barlayer .point path")
        assert len(shapes) >= 2
        assert all(shape.get_attribute("d").startswith("M") for shape in shapes)
        titles = [e.text for e in figure.find_elements(By.CSS_SELECTOR, ".xtitle, .ytitle")]
        assert len([t for t in titles if t]) == 2
        assert figure.find_element(By.TAG_NAME, "figcaption").text


def test_nothing_of_a_study_runs_as_a_script(browser):
    browser.open("hostile")
    assert browser.run("return window.broken") is None
    legend = [e.text for e in browser.all(".legend button")]
    assert legend == ['it\'s </script> "best" <b>bold</b>', "<img src=x onerror='window.broken = 1'>"]
    assert browser.one(".ytitle").text == "a < b & c"
    assert browser.one(".xtitle").text == "<time>"
    assert browser.one("figure select").text.split("\n") == ['<b>first</b> & "one"', "</script>second"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_read(browser, page, width, scheme):
    browser.open(page, width, scheme)
    browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    wide = browser.run(
        """return [...document.querySelectorAll("main > *, main section > *, figure > *")]
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []
    n_texts, clashes = browser.run(OVERLAPS)
    assert n_texts > 20
    assert clashes == []
    assert browser.run(WEAK_TEXT) == []


def test_overlaps_and_weak_colours_would_be_noticed(browser):
    browser.open("newton")
    browser.run("document.querySelector('h1').style.marginBottom = '-50px'")
    browser.run("document.querySelector('.lead').style.color = '#aaa'")
    assert browser.run(OVERLAPS)[1]
    assert any(weak.startswith("For people") for weak in browser.run(WEAK_TEXT))


def colours_of_figure(browser):
    return browser.run(
        """const style = (selector, name) =>
          getComputedStyle(document.querySelector("figure.plot " + selector)).getPropertyValue(name);
        return [style(".js-line", "stroke"), style(".ytick text", "fill"), style(".ygrid", "stroke"),
          document.querySelector("figure .legend svg path").getAttribute("stroke")]"""
    )


def test_figures_follow_the_scheme_and_the_choice_is_remembered(browser):
    browser.open("newton", scheme="light")
    light = colours_of_figure(browser)
    toggle = browser.one(".scheme-toggle")
    assert (toggle.text, toggle.get_attribute("aria-label")) == ("Dark", "Switch to dark colours")
    toggle.click()
    dark = colours_of_figure(browser)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert toggle.text == "Light"
    browser.driver.refresh()
    browser.wait_for_figures()
    assert colours_of_figure(browser) == dark
    browser.open("index", scheme="light")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    browser.one(".scheme-toggle").click()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 247)"


def test_without_a_choice_the_system_decides_and_a_change_is_followed(browser):
    browser.open("newton", scheme="dark")
    dark = colours_of_figure(browser)
    browser.prefer("light")
    browser.wait("return document.querySelector('.scheme-toggle').textContent.trim() === 'Dark'")
    assert all(one != other for one, other in zip(colours_of_figure(browser), dark, strict=True))


def test_a_case_is_chosen_from_the_menu_and_lines_from_the_legend(browser):
    browser.open("newton")
    figure = browser.one("figure.plot")
    first = browser.run(LINES, figure)
    assert len(first) == 3
    Select(figure.find_element(By.TAG_NAME, "select")).select_by_visible_text("low rank")
    second = browser.run(LINES, figure)
    assert len(second) == 3
    assert not set(first) & set(second)
    button = figure.find_element(By.CSS_SELECTOR, ".legend button")
    assert button.get_attribute("aria-pressed") == "true"
    button.send_keys(Keys.ENTER)
    assert len(browser.run(LINES, figure)) == 2
    # The button was made anew, has the focus still, and what is hidden stays hidden in the next case.
    button = browser.run("return document.activeElement")
    assert (button.text, button.get_attribute("aria-pressed")) == ("HiGHS", "false")
    Select(figure.find_element(By.TAG_NAME, "select")).select_by_index(0)
    assert len(browser.run(LINES, figure)) == 2
    browser.one("figure.plot .legend button").click()
    assert browser.run(LINES, figure) == first


def test_menus_and_legend_work_for_a_figure_that_a_study_makes_by_hand(browser):
    browser.open("newton", scheme="dark")
    figure = browser.all("figure.plot")[3]
    assert [e.text.split("\n")[0].strip() for e in figure.find_elements(By.TAG_NAME, "label")] == ["scale", "case"]
    axis = "return arguments[0].querySelector('.canvas').layout.yaxis.type"
    scale = Select(figure.find_element(By.TAG_NAME, "select"))
    assert scale.first_selected_option.text == "linear"
    assert browser.run(axis, figure) == "linear"
    scale.select_by_visible_text("log")
    assert browser.run(axis, figure) == "log"
    scale.select_by_visible_text("linear")

    def legend():
        buttons = figure.find_elements(By.CSS_SELECTOR, ".legend button")
        return {b.text: b.get_attribute("aria-pressed") == "true" for b in buttons}

    assert legend() == {"halves": True, "on demand": False, "band": True}
    assert len(browser.run(LINES, figure)) == 3
    figure.find_elements(By.CSS_SELECTOR, ".legend button")[1].click()
    assert legend()["on demand"]
    assert len(browser.run(LINES, figure)) == 4
    figure.find_elements(By.CSS_SELECTOR, ".legend button")[0].click()
    assert len(browser.run(LINES, figure)) == 2, "both lines of the group are hidden"
    # The colours of a light page are exchanged, also inside rgba(), and so is black; the title is the page's.
    drawn = browser.run("return arguments[0].querySelector('.canvas').data", figure)
    assert drawn[2]["line"]["color"] == "#F08A46"
    assert drawn[3]["fillcolor"] == "rgba(74,168,240,0.2)"
    note = browser.run("return getComputedStyle(arguments[0].querySelector('.annotation-text')).fill", figure)
    assert note == browser.run("return getComputedStyle(document.body).color")
    assert "a title of the plot" not in figure.text


def test_figures_follow_the_width_of_the_window(browser):
    browser.open("newton", width=1280)
    width = "return document.querySelector('figure.plot svg.main-svg').getBoundingClientRect().width"
    assert browser.run(width) > 700
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.wait(f"{width} < 390")
    browser.wait_for_figures()
    assert browser.run(OVERLAPS)[1] == []


def test_one_size_is_shown_at_a_time_and_a_link_into_another_opens_it(browser):
    browser.open("newton")
    shown = "return [...document.querySelectorAll('.results')].filter((e) => e.offsetWidth).map((e) => e.id)"
    assert browser.run(shown) == ["r1"]
    browser.all("nav.sizes a")[1].click()
    browser.wait_for_figures()
    assert browser.run(shown) == ["r2"]
    assert browser.one("nav.sizes [aria-current]").text.split() == ["quick", "results"]
    browser.open("newton", fragment="#r2-failed")
    assert browser.run(shown) == ["r2"]
    assert 0 <= browser.run("return document.getElementById('r2-failed').getBoundingClientRect().top") < 900


def test_code_is_copied(browser):
    browser.open("newton")
    browser.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    button = browser.one('.copy[aria-label="Copy: BibTeX"]')
    button.send_keys(Keys.ENTER)
    browser.wait("return Boolean(window.copied)")
    assert browser.run("return window.copied").startswith("@inproceedings{games-newton,\n")
    assert button.text == "Copied"
    browser.run("navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden'))")
    browser.run("document.addEventListener('copy', () => { window.copied = String(document.getSelection()); })")
    browser.one('.copy[aria-label="Copy: example"]').click()
    browser.wait("return window.copied.startsWith('import numpy as np')")


def test_the_keyboard_reaches_the_content_first_and_focus_is_seen(browser):
    browser.one("body").send_keys(Keys.TAB)
    skip = browser.run("return document.activeElement")
    assert skip.text == "Skip to the content"
    assert browser.run("return arguments[0].getBoundingClientRect().top", skip) >= 0
    skip.send_keys(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "main"
    browser.run("document.activeElement.blur()")
    browser.one("#filter-text").send_keys(Keys.TAB)
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_on_paper_all_sizes_are_there_in_light_colours(browser):
    browser.open("newton", scheme="dark")
    on_screen = colours_of_figure(browser)
    browser.prefer("dark", media="print")
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert len([e for e in browser.all(".results") if e.is_displayed()]) == 2
    assert not any(e.is_displayed() for e in browser.all("nav, .copy, header.site"))
    assert all(browser.run(LINES, figure) for figure in browser.all("figure.plot:has(select)"))
    assert browser.run("return getComputedStyle(document.querySelector('h1')).color") == "rgb(28, 30, 33)"
    on_paper = colours_of_figure(browser)
    assert all(one != other for one, other in zip(on_screen, on_paper, strict=True))
    browser.prefer("dark")
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert colours_of_figure(browser) == on_screen
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert len(pdf["data"]) > 10_000
    assert colours_of_figure(browser) == on_screen


def test_tables_can_be_read_without_scripts(site, tmp_path):
    driver = start(tmp_path, scripts=False)
    try:
        browser = Browser(driver, site)
        driver.get((site / PAGES["index"]).as_uri())
        assert browser.run("return document.documentElement.className") == "", "scripts are off"
        assert browser.titles()[0] == "Semismooth Newton for matrix games"
        assert not browser.one(".filters").is_displayed()
        driver.get((site / PAGES["newton"]).as_uri())
        assert len([e for e in browser.all(".results") if e.is_displayed()]) == 2
        outcomes = Counter(e.text for e in browser.all("table.claims .badge"))
        assert outcomes == {"holds": 3, "not reproduced": 2, "not measured": 2}
        assert "its numbers are in the tables" in browser.one("figcaption").text
        assert not any(e.is_displayed() for e in browser.all(".copy, nav.sizes, .scheme-toggle, figure select"))
    finally:
        driver.quit()


def test_a_hundred_studies_are_sorted_and_filtered(driver, fake_studies, fake_store, tmp_path):
    newton = fake_studies[0]
    made = [
        type("Many", (newton,), {"name": f"games/m{i}", "title": f"Method {i}", "__module__": newton.__module__})
        for i in range(100)
    ]
    write_report(made, fake_store, tmp_path)
    browser = Browser(driver, tmp_path)
    browser.open("index")
    browser.one("table.methods thead th button").click()
    assert browser.titles()[:3] == ["Method 0", "Method 1", "Method 2"]
    browser.one("#filter-text").send_keys("method 99")
    assert re.fullmatch("1 of 100 methods", browser.one(".count").text)
