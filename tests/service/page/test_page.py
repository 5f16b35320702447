"""The page at /: what is served, and what a reader does with it in a real browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.page.browser import (
    PAGE,
    marked,
    read,
    sample,
    settle,
    shown_text,
    submit,
    window_of,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

OPENING = sample()[:700]
"""Takes a tenth of the time of the whole."""

# Served


def test_front_page(http: httpx.Client) -> None:
    response = http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]


@pytest.mark.parametrize("name", sorted(path.name for path in PAGE.iterdir()))
def test_every_part_is_served_and_known_by_its_etag(http: httpx.Client, name: str) -> None:
    response = http.get(f"/page/{name}")
    assert response.content == (PAGE / name).read_bytes()
    again = http.get(f"/page/{name}", headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    changed = http.get(f"/page/{name}", headers={"if-none-match": '"other"'})
    assert changed.status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "index.html.bak"])
def test_nothing_else_is_served(http: httpx.Client, name: str) -> None:
    assert http.get(f"/page/{name}").status_code == 404


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in PAGE.iterdir():
        addresses = set(re.findall(r"https?://[\w./-]+", path.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name


def test_modules_import_what_exists() -> None:
    for path in PAGE.glob("*.js"):
        for names, module in re.findall(r'import \{([^}]+)\} from "\./(\S+)"', path.read_text()):
            source = (PAGE / module).read_text()
            for name in (name.strip() for name in names.split(",")):
                assert re.search(rf"export [\w ]*\b{name}\b", source), (path.name, name)


# Used


def test_reading_the_sample(page: Page) -> None:
    page.click("#sample")
    settle(page)
    assert page.locator(".head").count() == 6 * 12
    assert page.locator(".head.unread").count() == 0
    assert page.locator("[role=treeitem]").count() >= 3
    assert page.locator("#charts svg").count() == 2
    assert "802 tokens" in page.inner_text("#facts")
    assert len(page.inner_text(".map-figure figcaption")) > 10
    assert shown_text(page) == sample()


def test_instruments_colour_the_grid(page: Page) -> None:
    read(page, OPENING)
    square = page.locator("[data-place='2.7']")
    before = square.evaluate("element => element.style.backgroundColor")
    page.select_option("#instrument", "spectral_gap")
    settle(page)
    assert square.evaluate("element => element.style.backgroundColor") != before
    square.hover()
    assert re.match(r"default, layer 2, head 7: spectral gap \d", page.inner_text("#reading"))
    shown = float(page.inner_text("#reading").split("gap ")[1].split(" ")[0])
    response = page.request.post(
        "/v1/diagnostics",
        data={"text": OPENING, "layers": [2], "heads": [7], "instruments": ["spectral_gap"]},
    )
    told = response.json()["instruments"]["spectral_gap"]["values"][0][0]
    assert shown == pytest.approx(told, rel=5e-3)


def test_a_head_that_is_looked_at_shows_its_value_when_it_comes(page: Page) -> None:
    held: list[Any] = []
    page.route("**/v1/diagnostics", lambda route: held.append(route), times=1)
    with page.expect_request("**/v1/diagnostics"):
        page.click("#sample")
    # A real pointer would come to lie on another square when the page grows.
    page.dispatch_event("[data-place='0.3']", "pointerenter")
    assert page.inner_text("#reading") == "default, layer 0, head 3: not read"
    held[0].continue_()
    settle(page)
    shown = page.inner_text("#reading")
    assert re.match(r"default, layer 0, head 3: entropy \d", shown)
    mean, low, middle, high = map(float, re.findall(r"(?:entropy|below) ([\d.]+)", shown))
    assert low < mean < high
    assert low < middle < high


def test_kinds_of_heads_are_named(page: Page) -> None:
    read(page, OPENING)
    page.select_option("#instrument", "head_kind")
    settle(page)
    assert page.inner_text("[data-place='0.2'] .head-label") == "prev"
    page.hover("[data-place='0.2']")
    assert "layer 0, head 2: previous, head kind" in page.inner_text("#reading")


def test_instruments_of_layers_have_a_bar_a_layer(page: Page) -> None:
    page.click("#sample")
    settle(page)
    page.click("[data-place='3.5']")
    page.select_option("#instrument", "rank_collapse")
    page.wait_for_selector(".head.whole")
    settle(page)
    assert "beside" not in page.inner_text("#meaning").lower()
    page.select_option("#instrument", "path_lengths")
    assert "beside" not in page.inner_text("#meaning").lower()
    page.select_option("#instrument", "rank_collapse")
    settle(page)
    bars = page.locator(".head.whole")
    assert bars.count() == 6
    bars.nth(2).hover()
    assert re.match(r"default, layer 2: rank collapse \d", page.inner_text("#reading"))
    assert page.locator(".head[aria-selected='true']").get_attribute("data-place") == "3.0"
    bars.nth(4).click()
    page.wait_for_selector(".map-figure figcaption:has-text('layer 4, head 5')")


def test_opening_a_head_and_zooming(page: Page) -> None:
    page.click("#sample")
    settle(page)
    page.click("[data-place='3.5']")
    page.wait_for_selector(".map-figure figcaption:has-text('layer 3, head 5')")
    settle(page)
    assert window_of(page) == [0, 802, 0, 802]
    page.click("#zoom-in")
    page.wait_for_selector(".map-figure[data-window='201 602 201 602']")
    assert window_of(page) == [201, 602, 201, 602]
    page.locator("canvas.map").focus()
    for _ in range(3):
        page.keyboard.press("+")
    page.keyboard.press("ArrowDown")
    settle(page)
    rows = window_of(page)[:2]
    assert rows[1] - rows[0] == 51, "an eighth of 401, rounded at each step"
    assert marked(page, "row") == marked(page, "column") == 0
    page.keyboard.press("Enter")
    assert marked(page, "row") >= 1
    assert marked(page, "column") >= 1
    page.locator("canvas.map").hover(position={"x": 300, "y": 300})
    page.mouse.wheel(0, -2000)
    settle(page)
    assert "attends to" in page.inner_text("#cell")
    page.locator("canvas.map").click(position={"x": 300, "y": 300})
    assert marked(page, "column") >= 1
    page.keyboard.press("0")
    settle(page)
    assert window_of(page) == [0, 802, 0, 802]


def test_topics_are_marked_in_the_text(page: Page) -> None:
    page.click("#sample")
    settle(page)
    page.wait_for_selector(".topic")
    topic = page.locator(".topic").nth(1)
    topic.click()
    assert marked(page, "topic") > 5
    words = page.evaluate(
        "[...CSS.highlights.get('topic')].map(range => range.toString().toLowerCase())"
    )
    named = topic.locator(".topic-words").first.inner_text().removeprefix("reads ").split(", ")
    assert set(words) & set(named)
    topic.click()
    assert marked(page, "topic") == 0


def test_structure_moves_text_and_map(page: Page) -> None:
    page.click("#sample")
    settle(page)
    page.locator("[role=treeitem] > .node").nth(2).click()
    assert marked(page, "segment") >= 1
    settle(page)
    start, end, *_ = window_of(page)
    assert 0 < start < end < 802
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settle(page)
    assert window_of(page)[0] >= start


def test_the_keyboard_goes_on_from_the_results(page: Page) -> None:
    """The field that had the focus is hidden then."""
    page.fill("#text", "A short text.")
    page.keyboard.press("Control+Enter")
    settle(page)
    assert page.evaluate("document.activeElement.id") == "results"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "edit"


def test_keyboard_in_the_grid(page: Page) -> None:
    page.click("#sample")
    settle(page)
    page.locator("[data-place='0.0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(".map-figure figcaption:has-text('layer 1, head 2')")
    assert page.locator("[tabindex='0'].head").count() == 1


def test_two_models_side_by_side(page: Page) -> None:
    page.select_option("#beside", "sentence-transformers/all-MiniLM-L6-v2")
    page.click("#sample")
    settle(page)
    assert page.locator(".heads").count() == page.locator("canvas.map").count() == 2
    captions = page.locator(".map-figure figcaption").all_inner_texts()
    assert "LLN+Diag" in captions[0]
    assert "softmax" in captions[1]
    first, second = page.locator(".map-figure .legend").all_inner_texts()
    assert first == second, "equal colours mean equal attention"
    assert re.fullmatch(r"[\d.e-]+ or less\s+[\d.e-]+ a token", first)
    assert darkest(page, 0) != darkest(page, 1), "only one has the most attention"


def darkest(page: Page, index: int) -> list[int]:
    """The colour of the strongest cell of a map."""
    found: list[int] = (
        page.locator("canvas.map")
        .nth(index)
        .evaluate(
            """(canvas) => {
          const edge = 46 * devicePixelRatio, side = canvas.width - edge;
          const { data } = canvas.getContext("2d").getImageData(edge, edge, side, side);
          let darkest = [255, 255, 255];
          const light = ([red, green, blue]) => red + green + blue;
          for (let at = 0; at < data.length; at += 4) {
            const pixel = [...data.slice(at, at + 3)];
            if (data[at + 3] === 255 && light(pixel) < light(darkest)) darkest = pixel;
          }
          return darkest;
        }"""
        )
    )
    return found


def test_short_text_says_why_it_has_no_topics(page: Page) -> None:
    read(page, "Hi \U0001f30d there")
    page.wait_for_selector("#topics-hint:has-text('block-diagonal')")
    assert "10 characters" in page.inner_text("#facts"), "the API counts code points, and so do we"
    assert page.locator(".head.unread").count() == 0


def test_marks_are_right_beyond_the_basic_plane(page: Page) -> None:
    """JavaScript counts such characters twice."""
    submit(page, "\U0001f30d\U0001f30d " + sample())
    page.wait_for_selector(".topic")
    page.locator(".topic").first.click()
    words = page.evaluate("[...CSS.highlights.get('topic')].map(range => range.toString())")
    assert words
    assert all(word == word.strip() for word in words)


def test_words_from_right_to_left_leave_the_numbers_in_their_places(page: Page) -> None:
    """Also those that only a mark of a direction turns around."""
    read(page, "\u05e9\u05dc\u05d5\u05dd \u202e" * 12)
    page.focus("canvas.map")
    page.keyboard.press("Enter")
    assert len(page.inner_text("#cell").split("\u05e9")) > 1
    places = page.evaluate(
        """() => {
          const cell = document.querySelector("#cell");
          const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
          const left = [];
          while (nodes.nextNode()) {
            for (const number of nodes.currentNode.data.matchAll(/\\d[\\d.]*/g)) {
              const range = new Range();
              range.setStart(nodes.currentNode, number.index);
              range.setEnd(nodes.currentNode, number.index + number[0].length);
              left.push(range.getBoundingClientRect().left);
            }
          }
          return left;
        }"""
    )
    assert len(places) == 4
    assert places == sorted(places)
