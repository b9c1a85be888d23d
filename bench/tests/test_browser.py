"""Pages in a real browser, on a phone and a laptop, light and dark: no overlap, no sideways scroll, verdict first."""

import json
import shutil
from pathlib import Path

import pytest

from pliant_bench.tables.report import page
from pliant_bench.tables.verdict import verdict_of

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which scripts/test --all installs")
CHROMIUM = shutil.which("chromium")
ROOT = Path(__file__).parents[2]
RESULTS = [
    "demo_50mbit_2core_2026-11-25c",
    "auto_train_2core_2026-11-21",
    "grid_2core_2026-11-21",
    "steps_vgg_2core_2026-11-21",
]
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 24, 30)"}

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium, which scripts/test --all installs"),
]
PROBE = """() => {
  const box = (node) => node.getBoundingClientRect();
  const apart = (a, b) =>
    a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const faults = [];
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page scrolls sideways");
  for (const figure of document.querySelectorAll(".figure")) {
    const whole = box(figure), title = box(figure.previousElementSibling);
    const legend = figure.querySelector(".legend"), plot = figure.querySelector(".cartesianlayer");
    if (!apart(title, whole)) faults.push("a title lies on its figure");
    if (!plot || !box(plot).height) faults.push("nothing is drawn");
    else if (legend && !apart(box(legend), box(plot))) faults.push("a legend lies on its plot");
    for (const text of figure.querySelectorAll(".legendtext, .xtick text, .ytick text"))
      if (box(text).width && (box(text).left < whole.left - 1 || box(text).right > whole.right + 1))
        faults.push("cut off: " + text.textContent);
  }
  const shown = [...document.body.querySelectorAll("p, h2, table, dl")].filter((node) => box(node).height);
  const ground = getComputedStyle(document.body).backgroundColor;
  return { faults, first: shown[0].textContent, top: box(shown[0]).bottom, ground };
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("scheme", GROUNDS)
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1366, 768)])
def test_a_page_is_legible(browser, tmp_path, result, scheme, width, height):
    found = json.loads((ROOT / f"benchmarks/results/{result}.json").read_text())
    found["setup"] = {"task": "images", "target": 0.85, **found["setup"]}  # results of then did not say so
    file = tmp_path / "page.html"
    file.write_text(page(found))
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=True)
    tab = context.new_page()
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(file.as_uri())
    tab.wait_for_function("document.body.dataset.drawn === 'yes'", timeout=120_000)
    seen = tab.evaluate(PROBE)
    context.close()
    assert not errors
    assert not seen["faults"]
    assert seen["ground"] == GROUNDS[scheme]
    assert seen["top"] < height
    if verdict_of(found):
        assert seen["first"] == verdict_of(found)
