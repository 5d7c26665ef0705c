"""The chat page as somebody uses it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

KEY = "key-of-the-page"

# What has colours of its own: each text with the contrast of its colour to what lies below it.
_CONTRASTS = """() => {
  const channels = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], below) =>
    [r, g, b].map((value, index) => value * a + below[index] * (1 - a));
  const backdrop = (node) => {
    if (!node) return [255, 255, 255];
    const colour = channels(getComputedStyle(node).backgroundColor);
    return colour[3] === 1 ? colour.slice(0, 3) : over(colour, backdrop(node.parentElement));
  };
  const luminance = (colour) => {
    const [r, g, b] = colour
      .map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const { parentElement: node, data } = texts.currentNode;
    if (!data.trim() || !node.checkVisibility({ opacityProperty: true })) continue;
    const below = backdrop(node);
    const own = over(channels(getComputedStyle(node).color), below);
    const [light, dark] = [luminance(own), luminance(below)].sort((one, other) => other - one);
    found.push([data.trim().slice(0, 40), (light + 0.05) / (dark + 0.05)]);
  }
  return found;
}"""

_CARRY = """(field, [event, name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type }));
  const options = { bubbles: true, cancelable: true };
  field.dispatchEvent(
    event === "paste"
      ? new ClipboardEvent(event, { ...options, clipboardData: carried })
      : new DragEvent(event, { ...options, dataTransfer: carried }),
  );
}"""


class ChatPageDriver:
    """Drives the page by what its user sees: labels, roles and texts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.message = page.get_by_role("textbox", name="Message", exact=True)
        self.answers = page.locator(".answer")
        self.answer = self.answers.last
        self.text = self.answer.locator(".answer-text")
        self.failure = self.answer.get_by_role("alert")
        self.notice = page.locator("#notice")
        self.parameters = page.get_by_role("complementary", name="Parameters")
        self.links = page.get_by_role("navigation").get_by_role("link")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def set(self, **parameters: str) -> None:
        """Give fields of the panel, by their names in a request, these values."""
        if not self.parameters.is_visible():
            self.button("Parameters").click()
        for name, value in parameters.items():
            field = self.parameters.locator(f"[name={name}]")
            if name == "reasoning_effort":
                field.select_option(value)
            else:
                field.fill(value)

    def send(self, text: str) -> None:
        self.message.fill(text)
        self.message.press("Enter")

    def ask(self, text: str) -> None:
        """Send, and wait for the end of the answer."""
        n_answers = self.answers.count()
        self.send(text)
        self.wait_for_end(n_answers + 1)

    def wait_for_end(self, n_answers: int) -> None:
        expect(self.answers).to_have_count(n_answers)
        expect(self.answer.locator(".message-foot")).to_be_attached()
        expect(self.button("Send")).to_be_attached()

    def change_requests(self, **fields: Any) -> None:
        """Let requests ask for what the page itself never does."""

        def change(route: Route) -> None:
            body = json.loads(route.request.post_data or "")
            route.continue_(post_data=json.dumps(body | fields))

        self.page.route("**/v1/chat/completions", change)

    def attach(self, file: Path) -> None:
        with self.page.expect_file_chooser() as chooser:
            self.button("Attach an image").click()
        chooser.value.set_files(file)

    def carry(self, event: str, name: str, media_type: str, file: Path) -> None:
        """Drop or paste a file, by `event`, on the message field."""
        data = base64.b64encode(file.read_bytes()).decode()
        self.message.evaluate(_CARRY, [event, name, media_type, data])

    def watch(self, looked_at: str) -> None:
        """From now on note what a function in JavaScript makes of the list of messages."""
        self.page.evaluate(
            """() => {
              globalThis.seen = [];
              const list = document.getElementById("messages");
              const options = { childList: true, subtree: true, characterData: true };
              new MutationObserver(() => seen.push(LOOKED_AT(list))).observe(list, options);
            }""".replace("LOOKED_AT", f"({looked_at})")
        )

    def seen(self) -> list[Any]:
        """What was noted, at each change."""
        noted: list[Any] = self.page.evaluate("() => seen")
        return noted

    def menu(self, title: str, action: str) -> None:
        self.button(f"More about “{title}”").click()
        self.button(action).click()

    def exported(self) -> dict[str, Any]:
        with self.page.expect_download() as download:
            self.button("Export all conversations").click()
        content: dict[str, Any] = json.loads(download.value.path().read_text("utf-8"))
        return content

    def import_file(self, content: object) -> None:
        file = {
            "name": "conversations.json",
            "mimeType": "application/json",
            "buffer": json.dumps(content).encode(),
        }
        self.page.get_by_label("File of conversations").set_input_files([file])

    def tab_to(self, name: str, key: str = "Tab") -> None:
        """Go to a control by keyboard alone; everything on the way shows its focus."""
        for _ in range(60):
            self.page.keyboard.press(key)
            focused = self.page.locator(":focus")
            if focused.count() == 0:
                continue
            shown = focused.evaluate(
                """(node) => {
                  const box = node.closest(".composer") && node.matches("textarea");
                  return box || getComputedStyle(node).outlineStyle !== "none";
                }"""
            )
            assert shown, focused.evaluate("(node) => node.outerHTML")
            label = focused.evaluate("(node) => node.ariaLabel ?? node.innerText")
            if label.strip() == name:
                return
        raise AssertionError(f"{name} cannot be reached with {key}")

    def unnamed_controls(self) -> list[str]:
        """The roles of what takes focus, or is a picture, without a name for who cannot see it."""
        session = self.page.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        session.detach()
        return [
            node["role"]["value"]
            for node in nodes
            if not node["ignored"]
            and (_is_focusable(node) or node["role"]["value"] == "image")
            and not node.get("name", {}).get("value", "").strip()
        ]

    def faint_texts(self) -> dict[str, float]:
        """Visible texts of less than 4.5:1 contrast (WCAG 2.2, 1.4.3)."""
        contrasts: list[tuple[str, float]] = self.page.evaluate(_CONTRASTS)
        assert len(contrasts) > 10
        return {text: ratio for text, ratio in contrasts if ratio < 4.5}

    def speed(self) -> re.Match[str] | None:
        """Tokens of the answer, tokens a second, seconds to the first, tokens of the prompt."""
        return re.fullmatch(
            r"(\d+) tokens · ([\d.]+) tokens/s · first after ([\d.]+) s · prompt (\d+) tokens.*",
            self.answer.locator(".speed").inner_text(),
        )


def _is_focusable(node: dict[str, Any]) -> bool:
    return any(
        each["name"] == "focusable" and each["value"]["value"]
        for each in node.get("properties", [])
    )
