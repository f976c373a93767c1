"""The page of `deepnet plot` in a real browser that has no network: are its figures drawn?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting.series import is_by_layer
from tests.support.browser import Page, find_browser, open_page
from tests.support.monitored import add_events, add_score, make_run

CAUSE = "the learning rate is too high"
EVENT = {"update": 62, "kind": "not_finite", "started": 60, "cause": CAUSE}
NAME = "<img src=x onerror=fail(1)> & co"
TRY_EVERYTHING = """
<script>
const all = selector => [...document.querySelectorAll(selector)];
const soon = () => new Promise(resolve => setTimeout(resolve, 3000));
const isShown = trace => trace.meta.run === 1 && trace.visible !== false;
const isBroken = cell => {
    const words = document.createRange();
    words.selectNodeContents(cell);
    const size = parseFloat(getComputedStyle(cell).fontSize);
    return words.getBoundingClientRect().height > 2 * size;
};

async function tryEverything() {
    for (let place = 1; place < 6; place += 1) {
        await soon();
        all(`.tabs button:nth-child(${place})`).forEach(button => button.click());
    }
    await soon();
    document.getElementById("log-updates").click();
    const slider = document.querySelector("input[type=range]");
    slider.value = slider.min;
    slider.dispatchEvent(new Event("input"));
    all(".chip")[1].click();
    await soon();
    const drawn = all(".plot").filter(plot => plot.dataset.drawn);
    const shown = drawn.filter(plot => !plot.closest(".hidden") && plot.data.some(isShown));
    const facts = {
        "data-all-plots": all(".plot").length,
        "data-drawn-plots": drawn.length,
        "data-of-hidden-run": shown.length,
        "data-broken-names": all("td.name").filter(isBroken).length,
        "data-names": all("td.name").length,
        "data-logarithmic": drawn.filter(plot => plot.layout.xaxis.type === "log").length,
    };
    for (const [name, value] of Object.entries(facts)) document.body.setAttribute(name, value);
}

tryEverything();
</script>
</body>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    deep = make_run(folder / "deep", growth=1.05)
    broken = make_run(folder / NAME, range(5, 85, 5), growth=2.5, broken_from=60)
    one_side = make_run(folder / "one stack", range(10, 60, 10), {"decoder": 4})
    add_events(broken, EVENT)
    add_score(deep, 31.25)
    out = folder / "page.html"
    assert cli.main(["plot", *map(str, (deep, broken, one_side)), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def opened(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    find_browser()
    return open_page(page, tmp_path_factory.mktemp("browser") / "profile")


def quantities_of(dom: str) -> dict[str, str]:
    """What the document holds of each quantity."""
    pieces = re.split(r'<div class="quantity" id="(\w+)">', dom)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_every_figure_is_drawn_and_no_script_fails(opened: Page) -> None:
    assert opened.complaints == ()
    root = re.search(r"<html[^>]*>", opened.dom)
    assert root is not None
    assert 'data-state="drawn"' in root[0]
    assert "data-failed" not in root[0]


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_quantity_has_its_figures(opened: Page, name: str) -> None:
    section = quantities_of(opened.dom)[name]
    lines = re.findall(r'<path class="js-line" d="(M[^"]+)"', section)
    longest = max(map(len, lines))
    assert longest > 30
    if is_by_layer(name):
        maps = re.findall(r'<image [^>]*href="data:image/png;base64,[^"]{100,}"', section)
        assert len(maps) >= 3


def test_losses_are_drawn_and_events_are_marked_and_told(opened: Page) -> None:
    before = opened.dom.split('<div class="quantity" id=')[0]
    assert len(re.findall(r'<path class="js-line" d="M', before)) >= 8
    assert opened.dom.count("▼") >= 2 * len(QUANTITIES)
    assert CAUSE[1:] in opened.dom
    assert "31.25" in opened.dom


def test_names_of_runs_are_text_and_not_markup(opened: Page) -> None:
    assert "<img" not in re.sub(r"<script.*?</script>", "", opened.dom, flags=re.DOTALL)
    assert opened.dom.count("&lt;img src=x onerror=fail(1)&gt; &amp; co") > 2 * len(QUANTITIES)


def test_the_page_names_no_other_place(page: Path) -> None:
    text = re.sub(r"<script>.*?</script>", "", page.read_text("utf-8"), flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert "default-src 'none'" in text


def test_parts_runs_updates_and_axes_can_be_chosen(page: Path, tmp_path: Path) -> None:
    tried = tmp_path / "tried.html"
    text = page.read_text("utf-8").replace("</body>", TRY_EVERYTHING)
    tried.write_text(text, encoding="utf-8")
    opened = open_page(tried, tmp_path / "profile")
    assert opened.complaints == ()
    body = re.search(r"<body[^>]*>", opened.dom)
    assert body is not None
    facts = {name: int(value) for name, value in re.findall(r'data-([\w-]+)="(\d+)"', body[0])}
    assert facts["drawn-plots"] == facts["all-plots"]
    assert facts["of-hidden-run"] == 0
    assert facts["names"] >= 3 + 3
    assert facts["broken-names"] == 0  # a name keeps its dot, and is in one line
    assert facts["logarithmic"] > facts["all-plots"] / 2


@pytest.mark.parametrize(
    "fault",
    ["throw new Error('planted');", "fetch('https://example.org/x.js');"],
    ids=["script-fails", "asks-the-network"],
)
def test_a_fault_in_the_page_is_seen(page: Path, tmp_path: Path, fault: str) -> None:
    bad = tmp_path / "bad.html"
    text = page.read_text("utf-8").replace("</body>", f"<script>{fault}</script></body>")
    bad.write_text(text, encoding="utf-8")
    opened = open_page(bad, tmp_path / "profile")
    assert "data-failed" in opened.dom[:2000]
    assert opened.complaints
