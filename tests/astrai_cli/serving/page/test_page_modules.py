"""The chat page's Markdown and event streams, in a browser, however their text is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import running_browser
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page, Route

import astrai_cli.serving.page

SOURCES = Path(astrai_cli.serving.page.__file__).parent
ORIGIN = "http://modules.test"

_SETUP = """async () => {
  const { MarkdownRenderer } = await import("/markdown.js");
  const { streamChat } = await import("/stream.js");
  globalThis.shown = (pieces, seen = () => {}) => {
    const root = document.createElement("div");
    const renderer = new MarkdownRenderer(root);
    for (const piece of pieces) {
      renderer.write(piece);
      renderer.flush();
      seen(root);
    }
    renderer.end();
    return root;
  };
  globalThis.received = async (pieces, status, type) => {
    const bytes = pieces.map((piece) => Uint8Array.from(piece));
    const body = new ReadableStream({
      pull(controller) {
        if (bytes.length) controller.enqueue(bytes.shift());
        else controller.close();
      },
    });
    const headers = { "content-type": type };
    globalThis.fetch = async () => new Response(body, { status, headers });
    const chunks = [];
    try {
      for await (const chunk of streamChat({}, {})) chunks.push(chunk);
    } catch (error) {
      chunks.push(`${error.status} ${error.code}: ${error.message}`);
    }
    return chunks;
  };
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """An empty page with `shown` and `received`, on an origin that has the modules alone."""

    def serve(route: Route) -> None:
        path = SOURCES / route.request.url.removeprefix(f"{ORIGIN}/")
        if path.suffix == ".js":
            route.fulfill(body=path.read_text("utf-8"), content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    with running_browser() as browser:
        page = browser.new_page()
        page.route("**", serve)
        page.goto(f"{ORIGIN}/")
        page.evaluate(_SETUP)
        yield page


_MARKUP = """(pieces) => {
  const root = shown(pieces);
  const all = (selector) => root.querySelectorAll(selector);
  for (const head of all(".code-head")) head.replaceWith(`[${head.textContent}]`);
  for (const node of all("span, .code-block, .table-block, pre")) {
    node.replaceWith(...node.childNodes);
  }
  const same = ["target", "rel", "title", "tabindex", "role", "aria-label"];
  for (const node of all("*")) for (const name of same) node.removeAttribute(name);
  for (const node of all("[class='']")) node.removeAttribute("class");
  for (const node of all("[start='1']")) node.removeAttribute("start");
  root.normalize();
  return root.innerHTML;
}"""


def shown(page: Page, *pieces: str) -> str:
    """The markup that shows Markdown, without what is the same around every block."""
    markup: str = page.evaluate(_MARKUP, pieces)
    return markup


def markdown_cases() -> Iterator[tuple[str, str]]:
    """Markdown, and the markup that shows it."""
    text = (Path(__file__).parents[3] / "data" / "markdown.txt").read_text("utf-8")
    for case in text.split("====\n"):
        source, markup = case.split("\n.\n")
        yield source, markup.removesuffix("\n")
    yield "\ta\r\n\r\n   # b", '<p>a</p><h3 class="heading-1">b</h3>'


@pytest.mark.parametrize(("source", "markup"), markdown_cases(), ids=str)
def test_markdown(page: Page, source: str, markup: str) -> None:
    assert shown(page, source) == markup
    assert shown(page, *source) == markup


FRAGMENTS = [
    *"*_~`[]()<>!#|-+=:\\\"'&. \t\n1a\u00e9\u00a0\U0001f600",
    *[
        "\n\n",
        "\n- ",
        "\n  - ",
        "\n1. ",
        "\n> ",
        "\n```js\n",
        "\n```\n",
        "\n~~~",
        "\n# ",
        "\n---\n",
    ],
    *["| a | b |\n|--|:-:|\n", "**", "](", "[x](http://x.example)", "https://x.example/a", "\r\n"],
    *["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))"],
    *["[x](JaVaScRiPt&#58;alert(1))", "[x](data:text/html,<script>1</script>)", "<b onclick=x>"],
    *["![x](http://x.example/i.png)", "<javascript:alert(1)>", "word " * 300, "x" * 1200],
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    text = draw(TEXTS)
    places = draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]


ALLOWED = {
    *[
        "p",
        "br",
        "em",
        "strong",
        "del",
        "code",
        "a",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "ul",
        "ol",
        "li",
    ],
    *["blockquote", "pre", "table", "thead", "tbody", "tr", "th", "td", "div", "span"],
    *["button", "svg", "use"],
}
ATTRIBUTES = {
    *["class", "tabindex", "role", "aria-label", "aria-hidden", "title", "type", "target", "rel"],
    *["href", "start"],
}


@settings(deadline=None, max_examples=150)
@given(cut_texts())
def test_markdown_does_not_depend_on_cuts_and_is_never_live(page: Page, pieces: list[str]) -> None:
    whole = shown(page, "".join(pieces))
    assert shown(page, *pieces) == whole
    names, attributes, addresses, targets = page.evaluate(
        """(pieces) => {
          const nodes = [...shown(pieces).querySelectorAll("*")];
          const links = nodes.filter(({ localName }) => localName === "a");
          return [
            nodes.map(({ localName }) => localName),
            nodes.flatMap((node) => node.getAttributeNames()),
            links.map(({ protocol }) => protocol),
            links.map(({ target, rel }) => `${target} ${rel}`),
          ];
        }""",
        pieces,
    )
    assert set(names) <= ALLOWED
    assert set(attributes) <= ATTRIBUTES
    assert set(addresses) <= {"http:", "https:", "mailto:"}
    assert set(targets) <= {"_blank noopener noreferrer"}


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1)) [x](java\tscript:alert(1)) [x](&#106;avascript:alert(1))",
        "[x](<javascript:alert(1)>) ![x](javascript:alert(1)) [x](data:text/html,x)",
        "[x](//evil.example) [x](/v1/models) [x](file:///etc/passwd)",
        "```<img/src=x>\n</code></pre><script>alert(1)</script>\n```",
        "| <svg onload=alert(1)> |\n|---|\n| <iframe src=javascript:alert(1)> |",
    ],
)
def test_hostile_markdown_is_text(page: Page, attack: str) -> None:
    live = "script, img, iframe, svg[onload], a"
    count = page.evaluate(
        "([text, live]) => shown([text]).querySelectorAll(live).length", [attack, live]
    )
    assert count == 0


HEAVY = [
    "word " * 20_000,
    "x" * 60_000,
    "```\n" + "line of code\n" * 4_000,
    "- item\n" * 3_000,
    "| a | b |\n|---|---|\n" + "| c | d |\n" * 2_000,
    "**" * 20_000,
    "[" * 20_000 + "](" * 10_000,
    "> " * 10_000 + "deep",
    "- " * 10_000,
    "`" * 10_000 + "a" + "``" * 5_000,
    "| a | b |\n|---|---|\n| " + "long " * 10_000,
]


@pytest.mark.parametrize("text", HEAVY, ids=lambda text: text[:12].strip())
def test_work_grows_with_the_text_and_not_with_its_square(page: Page, text: str) -> None:
    """Of a text in n pieces, what one piece changes is bounded, and blocks that ended stay."""
    n = 50
    size = -(-len(text) // n)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    written, shown_again = page.evaluate(
        """async (pieces) => {
          let written = 0;
          const observer = new MutationObserver(() => {});
          let first = null;
          const root = shown(pieces, (root) => {
            if (!first) observer.observe(root, { childList: true, subtree: true });
            first ??= root;
            for (const { addedNodes } of observer.takeRecords())
              for (const node of addedNodes) written += node.textContent.length;
          });
          return [written, root.textContent.length];
        }""",
        pieces,
    )
    assert written <= 3 * len(text) + n * 4 * 4096
    assert shown_again <= 2 * len(text)


def test_nothing_flickers_while_emphasis_links_and_tables_come(page: Page) -> None:
    text = "A **bold** `code` [link](https://x.example/)\n\n| a | b |\n|---|---|\n| c | d |\n"
    states = page.evaluate(
        """(pieces) => {
          const states = [];
          shown(pieces, (root) => states.push(root.textContent));
          return states;
        }""",
        list(text),
    )
    assert not any(mark in state for state in states for mark in ("*", "`", "](", "|"))


EVENTS = (
    "\ufeff: hello\n\n"
    'data: {"id": "é😀"}\r\n\r\n'
    "event: other\rid: 1\rdata: {\rdata:\r"
    'data: "a": "\u2028"}\r\r'
    'data:{"b":2}\nretry: 5\n\n'
    "dataset: no\n\n: keep-alive\n\n"
    "data: [DONE]\n\ndata: ignored\n\n"
).encode()
CHUNKS = [{"id": "é😀"}, {"a": "\u2028"}, {"b": 2}]


def received(
    page: Page,
    data: bytes,
    places: list[int],
    status: int = 200,
    media: str = "text/event-stream; charset=utf-8",
) -> list[Any]:
    ends = [0, *sorted(places), len(data)]
    pieces = [list(data[start:end]) for start, end in pairwise(ends)]
    chunks: list[Any] = page.evaluate("(given) => received(...given)", [pieces, status, media])
    return chunks


def test_events_byte_by_byte(page: Page) -> None:
    assert received(page, EVENTS, []) == CHUNKS
    assert received(page, EVENTS, list(range(1, len(EVENTS)))) == CHUNKS


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, len(EVENTS)), max_size=10))
def test_events_do_not_depend_on_cuts(page: Page, places: list[int]) -> None:
    assert received(page, EVENTS, places) == CHUNKS


@pytest.mark.parametrize(
    ("data", "status", "last"),
    [
        (b'data: {"a":1}\n\n', 200, "0 : The connection ended before the answer did."),
        (b'data: {"error":{"message":"no","code":"x"}}\n\n', 200, "0 x: no"),
        (b"data: {\n\n", 200, "0 : The server sent an event that is not JSON."),
        (b"data: null\n\n", 200, "0 : The server sent an event that is empty."),
        (b'data: {"error":"boom"}\n\n', 200, "0 : boom"),
        (b'data: {"error":{"why":1}}\n\n', 200, '0 : {"why":1}'),
        (b'{"error":"boom"}', 500, "500 : boom"),
        (b'{"error":{"message":"full","code":"busy"}}', 429, "429 busy: full"),
        (b"<html>Bad gateway</html>", 502, "502 : <html>Bad gateway</html>"),
    ],
)
def test_streams_that_end_badly(page: Page, data: bytes, status: int, last: str) -> None:
    assert received(page, data, [], status)[-1] == last


def test_an_answer_that_is_no_stream(page: Page) -> None:
    whole = received(page, b'{"choices":[]}', [], media="application/json")
    assert whole == ["0 : The server sent something other than a stream of events."]
