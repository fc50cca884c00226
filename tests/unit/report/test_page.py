# SPDX-License-Identifier: Apache-2.0
"""The page of `pysim report` in a browser: it opens without an error, sorts, filters, shows plans, and can be used without a mouse."""

import json
import shutil

import pytest
from command_line import cache, ok, own_files  # noqa: F401

pytest.importorskip("vl_convert", reason="vl-convert is not installed")
MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    ok("report", "squeezenet", "-m", "zen4", "-m", "h200", "-o", str(path), "--title", "<b>A & B</b>")
    return path


@pytest.fixture
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not (chromium := shutil.which("chromium")):
        pytest.skip("chromium is not installed")
    with sync.sync_playwright() as play:
        found = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, page):
    told = []
    tab = browser.new_page()
    tab.on("console", lambda message: told.append(message.text))
    tab.on("pageerror", lambda error: told.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith("file:") else told.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert not told, "no error, no warning, and nothing from the network"


def test_a_page_is_one_file_of_moderate_size_and_its_texts_are_escaped(page):
    text = page.read_text()
    assert page.stat().st_size < MOST_BYTES
    assert "<b>A &amp; B</b>" not in text and "&lt;b&gt;A &amp; B&lt;/b&gt;" in text
    assert "http://" not in text.split("<script", 1)[0] and "@TABLE@" not in text


def first_cells(tab, column):
    return [cell.inner_text() for cell in tab.locator(f"#table tbody tr:visible td:nth-child({column})").all()]


def test_rows_are_filtered_and_sorted(opened):
    rows = opened.locator("#table tbody tr:visible")
    every = rows.count()
    opened.get_by_label("Machine").select_option("h200")
    assert rows.count() == every // 2 and set(first_cells(opened, 2)) == {"h200"}
    opened.get_by_label("Filter").fill("kh3 ic64")
    assert 0 < rows.count() < every // 2 and all("kh3" in one for one in first_cells(opened, 1))
    opened.get_by_label("Filter").fill("")
    head = opened.locator("#table th:nth-child(4) button")
    for order in (1, -1):
        head.press("Enter")
        cells = opened.locator("#table tbody tr:visible td:nth-child(4)").all()
        found = [float(cell.get_attribute("data-value")) for cell in cells]
        assert found == sorted(found, reverse=order == 1)


def test_a_row_leads_to_its_plan(opened):
    opened.locator("#table a.plan").first.click()
    plan = opened.locator("details[open]")
    assert plan.count() == 1 and "would help" in plan.inner_text() and "pysim plan conv:" in plan.inner_text()


def test_charts_are_drawn_when_they_come_into_view(opened):
    charts = opened.locator(".chart")
    assert charts.count() >= 6
    for at in range(charts.count()):
        opened.locator(f"#chart-{at}").scroll_into_view_if_needed()
        opened.locator(f"#chart-{at} svg").wait_for()


def test_no_serious_barrier_is_found(opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    for at in range(opened.locator(".chart").count()):
        opened.locator(f"#chart-{at}").scroll_into_view_if_needed()
        opened.locator(f"#chart-{at} svg").wait_for()
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(opened).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"][:120]) for one in found if one["impact"] in ("serious", "critical")]
        assert not serious


def test_it_fits_a_phone(opened):
    opened.set_viewport_size({"width": 400, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_measured_network_of_a_long_name_fits_a_phone(browser, tmp_path):
    layers = [{"op": "MaxPool", "node": "n1", "predicted_seconds": 1e-4, "plan": None}]
    model = {"model": "/".join(20 * ["folder"]) + "/model.onnx", "measured_seconds": 0.1, "layers": layers}
    (tmp_path / "today.json").write_text(json.dumps({"schema": 1, "models": [model]}))
    ok("report", str(tmp_path / "today.json"), "-o", str(tmp_path / "today.html"), "--title", 60 * "long")
    assert ">None<" not in (tmp_path / "today.html").read_text()
    tab = browser.new_page(viewport={"width": 400, "height": 800})
    tab.goto((tmp_path / "today.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400


def test_paper_has_all_columns_and_dark_text(opened):
    opened.emulate_media(media="print", color_scheme="dark")
    opened.set_viewport_size({"width": 1032, "height": 700})  # A4, landscape, less its margins
    assert opened.evaluate("document.documentElement.scrollWidth") <= 1032
    assert opened.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground').trim()") == "#fff"
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.locator("#chart-0 svg text").first.wait_for()
    assert opened.locator("#chart-0 svg text").first.get_attribute("fill") == "#1b1f24"
