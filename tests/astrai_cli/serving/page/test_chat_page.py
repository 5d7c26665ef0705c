"""The chat page in Chromium, on a real server with a small model that reasons, calls and sees."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser import running_browser
from chat_page import KEY, ChatPageDriver
from muse_fixtures import CHAT, CHAT_MMPROJ, CHAT_MODEL
from openai import OpenAI
from playwright.sync_api import Browser, ConsoleMessage, expect
from server_process import ServerProcess, running_server

# For machines that are busy with other things.
expect.set_options(timeout=30_000)

BLUE = CHAT / "blue.png"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
# A failed request is reported to the console too; the page shows it.
EXPECTED_REPORT = "Failed to load resource"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    limits = {"mmproj": str(CHAT_MMPROJ), "max_context": 1024}
    with running_server(CHAT_MODEL, tool_parser="atem", api_key=KEY, limits=limits) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def chat(server: ServerProcess, browser: Browser) -> Iterator[ChatPageDriver]:
    """The page in a browser that has never been there, with the key and greedy sampling.

    Nothing may leave the server's origin, break the page's policy or raise.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(30_000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    settings = json.dumps({"temperature": "0", "reasoning_effort": "low", "max_tokens": "96"})
    context.add_init_script(
        f"sessionStorage['astrai:/:key'] ??= {json.dumps(KEY)};"
        f"localStorage['astrai:/:settings'] ??= {json.dumps(settings)};"
    )
    page = context.new_page()
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and EXPECTED_REPORT not in message.text:
            problems.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: problems.append(request.url) if is_elsewhere(request.url) else None,
    )

    def is_elsewhere(url: str) -> bool:
        return not url.startswith((f"{server.url}/", "data:", "blob:"))

    page.goto(f"{server.url}/")
    expect(page.locator("#model-name")).not_to_be_empty()
    yield ChatPageDriver(page)
    context.close()
    assert problems == []


def test_the_page_is_one_document_that_browsers_keep(server: ServerProcess) -> None:
    with server.http() as http:
        page = http.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(
            each.split(" ", 1) for each in page.headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert policy["script-src"].startswith("'sha256-")
        again = http.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        # Relative addresses work below any root path.
        assert re.search(r"""["'`(]/(v1|\w+\.(js|css))|(src|href)="https?:""", page.text) is None


def test_an_answer_streams_and_is_the_one_of_the_api(
    chat: ChatPageDriver, server: ServerProcess
) -> None:
    chat.watch("(list) => list.querySelector('.answer-text')?.textContent")
    chat.ask("Count from 2 to 8.")
    client = OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    answer = client.chat.completions.create(
        model="astrai",
        messages=[{"role": "user", "content": "Count from 2 to 8."}],
        temperature=0,
        max_tokens=96,
        reasoning_effort="low",
    )
    assert answer.choices[0].message.content == chat.text.inner_text()
    assert len(set(chat.seen())) > 3
    speed = chat.speed()
    assert speed is not None
    assert answer.usage is not None
    assert int(speed[1]) == answer.usage.completion_tokens
    assert int(speed[4]) == answer.usage.prompt_tokens
    expect(chat.page.get_by_role("status")).to_have_text(chat.text.inner_text())
    expect(chat.links).to_have_text(["Count from 2 to 8."])


def test_reasoning_is_open_while_it_comes_and_folded_then(chat: ChatPageDriver) -> None:
    chat.set(reasoning_effort="high")
    chat.watch(
        """(list) => {
          const thought = list.querySelector(".thought");
          return thought && [thought.open, thought.querySelector("summary").innerText];
        }"""
    )
    chat.ask("Say hello.")
    assert next(filter(None, chat.seen())) == [True, "Thinking…"]
    thought = chat.answer.locator(".thought-text")
    expect(thought).to_be_hidden()
    chat.answer.get_by_text("Thought for").click()
    expect(thought).to_be_visible()
    assert thought.inner_text() != chat.text.inner_text() != ""


def test_a_call_is_shown_and_its_result_given_by_hand(chat: ChatPageDriver) -> None:
    chat.set(tools="[")
    chat.send("Weather in Paris, please.")
    expect(chat.parameters.get_by_text("This is not JSON")).to_be_visible()
    expect(chat.answers).to_have_count(0)
    chat.button("Insert an example").click()
    chat.ask("Weather in Paris, please.")
    call = chat.answer.locator(".call")
    expect(call.locator("code")).to_have_text("get_weather")
    expect(call.locator("pre")).to_have_text('{\n  "city": "Bergen"\n}')

    chat.send("And?")
    expect(chat.notice).to_contain_text("waits for the result of get_weather")
    field = chat.page.get_by_role("textbox", name="Result of get_weather")
    expect(field).to_be_focused()
    field.fill("sunny, 8 degrees")
    chat.button("Send the result").click()
    chat.wait_for_end(2)
    expect(chat.text).to_contain_text("sunny")
    expect(chat.answers.first.locator(".call")).to_contain_text("sunny, 8 degrees")
    expect(chat.message).to_have_value("And?")
    chat.page.reload()
    expect(chat.answers.first.locator(".call pre").last).to_have_text("sunny, 8 degrees")
    expect(chat.page.get_by_role("textbox", name="Result of get_weather")).to_have_count(0)


def test_images_are_attached_seen_and_one_too_many_is_explained(chat: ChatPageDriver) -> None:
    thumbnails = chat.page.get_by_role("list", name="Images to send").get_by_role("img")
    chat.carry("drop", "a.gif", "image/gif", BLUE)
    expect(chat.notice).to_contain_text("a.gif is not a PNG or JPEG image")
    chat.carry("drop", "a.png", "image/png", BLUE)
    expect(thumbnails).to_have_count(1)
    chat.carry("paste", "b.png", "image/png", BLUE)
    expect(thumbnails).to_have_count(2)
    for _ in range(2):
        chat.button("Remove image 1").click()
    expect(thumbnails).to_have_count(0)

    chat.attach(BLUE)
    expect(thumbnails).to_have_count(1)
    chat.ask("What colour is this image?")
    expect(chat.text).to_contain_text("blue")
    expect(thumbnails).to_have_count(0)
    chat.attach(BLUE)
    chat.ask("And this?")
    expect(chat.failure).to_contain_text("the conversation has 2 images, of at most 1")
    expect(chat.failure).to_contain_text("Edit a message to leave its image out")
    chat.button("Edit the message").last.click()
    chat.page.get_by_role("checkbox", name="Keep Image 1").uncheck()
    chat.page.locator(".editor").get_by_role("button", name="Send").click()
    expect(chat.failure).to_have_count(0)
    chat.wait_for_end(2)


@pytest.mark.parametrize("how", ["Escape", "the button"])
def test_an_answer_is_stopped(chat: ChatPageDriver, server: ServerProcess, how: str) -> None:
    chat.change_requests(ignore_eos=True, max_tokens=900)
    chat.send("Say hello.")
    expect(chat.text).not_to_be_empty()
    if how == "Escape":
        chat.page.keyboard.press("Escape")
    else:
        chat.button("Stop").click()
    expect(chat.answer.get_by_text("Stopped.")).to_be_visible()
    text = chat.text.inner_text()
    assert text
    chat.page.reload()
    expect(chat.text).to_have_text(text, use_inner_text=True)
    headers = {"authorization": f"Bearer {KEY}"}
    with server.http() as http:
        while http.get("/stats", headers=headers).json()["decoding"]:
            pass


def test_a_growing_answer_is_followed_until_somebody_scrolls_up(chat: ChatPageDriver) -> None:
    chat.page.set_viewport_size({"width": 640, "height": 300})
    chat.change_requests(ignore_eos=True, max_tokens=600)
    chat.send("Say hello. " * 20)
    expect(chat.text).to_contain_text(re.compile(r"(.\s*){40}"))
    expect(chat.button("To the latest message")).to_be_hidden()
    chat.page.mouse.move(300, 100)
    chat.page.mouse.wheel(0, -200)
    expect(chat.button("To the latest message")).to_be_visible()
    chat.button("To the latest message").click()
    expect(chat.button("To the latest message")).to_be_hidden()
    chat.page.keyboard.press("Escape")
    expect(chat.answer.get_by_text("Stopped.")).to_be_in_viewport()


def test_errors_are_shown_and_tried_again(chat: ChatPageDriver) -> None:
    bad: dict[str, Any] = json.loads(json.dumps(WEATHER))
    bad["function"]["parameters"]["type"] = "nonsense"
    chat.set(tools=json.dumps([bad]))
    chat.ask("Weather in Paris, please.")
    expect(chat.failure).to_contain_text("400 invalid_tool_schema")

    strict: dict[str, Any] = json.loads(json.dumps(WEATHER))
    strict["function"]["parameters"]["required"] = ["city", "days"]
    chat.set(tools=json.dumps([strict]))
    chat.button("Try again").click()
    expect(chat.failure).to_contain_text("do not match its schema")

    chat.set(tools=json.dumps([WEATHER]))
    chat.page.context.set_offline(True)
    chat.button("Try again").click()
    expect(chat.failure).to_contain_text("The server cannot be reached.")
    chat.page.context.set_offline(False)
    chat.button("Try again").click()
    expect(chat.answer.locator(".call")).to_be_visible()
    expect(chat.failure).to_have_count(0)


def test_editing_and_answering_again_go_on_from_there(chat: ChatPageDriver) -> None:
    chat.ask("Tell me a joke.")
    joke = chat.text.inner_text()
    chat.ask("Say hello.")
    hello = chat.text.inner_text()
    chat.button("Answer again").click()
    chat.wait_for_end(2)
    expect(chat.text).to_have_text(hello)

    chat.button("Edit the message").first.click()
    editor = chat.page.locator(".editor")
    expect(editor.get_by_role("textbox")).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(editor).to_have_count(0)
    chat.button("Edit the message").first.click()
    editor.get_by_role("textbox").fill("Count from 2 to 8.")
    chat.page.keyboard.press("Enter")
    chat.wait_for_end(1)
    expect(chat.text).not_to_have_text(joke)
    chat.button("Copy the answer").click()
    expect(chat.page.get_by_role("status")).to_have_text("Copied.")
    assert chat.page.evaluate("() => navigator.clipboard.readText()") == chat.text.inner_text()


def test_conversations_are_kept_renamed_deleted_and_carried_over(chat: ChatPageDriver) -> None:
    chat.set(system="Be brief.", stop="never\never")
    chat.attach(BLUE)
    chat.ask("What colour is this image?")
    text = chat.text.inner_text()
    chat.page.reload()
    expect(chat.text).to_have_text(text)
    expect(chat.page.get_by_role("img", name="Image 1")).to_be_visible()
    expect(chat.parameters.locator("[name=system]")).to_have_value("Be brief.")

    chat.button("New conversation").click()
    expect(chat.answers).to_have_count(0)
    chat.ask("Say hello.")
    expect(chat.links).to_have_text(["Say hello.", "What colour is this image?"])
    chat.menu("Say hello.", "Rename")
    chat.page.get_by_role("textbox", name="Title").fill("Greetings")
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_role("heading", name="Greetings")).to_be_visible()
    content = chat.exported()
    assert len(content["conversations"]) == 2

    chat.menu("What colour is this image?", "Delete")
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.links).to_have_text(["Greetings"])
    chat.import_file(content)
    expect(chat.links).to_have_count(3)
    chat.links.filter(has_text="What colour").click()
    expect(chat.text).to_have_text(text)
    chat.page.go_back()
    expect(chat.page.get_by_role("heading", name="Greetings")).to_be_visible()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"format": "astrai-conversations", "conversations": [{"messages": [None]}]},
        {
            "format": "astrai-conversations",
            "conversations": [
                {"messages": [{"role": "user", "text": "", "images": ["https://evil.example/i"]}]}
            ],
        },
    ],
    ids=["no file of the page", "no message", "an image from elsewhere"],
)
def test_files_that_are_refused(chat: ChatPageDriver, content: object) -> None:
    chat.import_file(content)
    expect(chat.notice).to_contain_text("Nothing was imported")
    expect(chat.links).to_have_count(0)


def test_a_full_browser_is_told_and_the_chat_goes_on(chat: ChatPageDriver) -> None:
    chat.page.evaluate(
        """() => {
          IDBObjectStore.prototype.put = () => {
            throw new DOMException("full", "QuotaExceededError");
          };
        }"""
    )
    chat.ask("Say hello.")
    expect(chat.notice).to_contain_text("the browser has no more room")
    expect(chat.text).not_to_be_empty()


def test_the_key_is_asked_for(server: ServerProcess, chat: ChatPageDriver) -> None:
    chat.page.evaluate("() => sessionStorage.setItem('astrai:/:key', '')")
    chat.page.reload()
    dialog = chat.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("wrong")
    chat.page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    chat.page.keyboard.press("Escape")
    chat.send("Say hello.")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Key", exact=True).fill(KEY)
    dialog.get_by_role("checkbox").check()
    chat.page.keyboard.press("Enter")
    chat.wait_for_end(1)
    expect(chat.text).not_to_be_empty()
    stored = chat.page.evaluate(
        "() => [localStorage['astrai:/:key'], sessionStorage['astrai:/:key']]"
    )
    assert stored == [KEY, None]


def test_hostile_texts_stay_texts(chat: ChatPageDriver) -> None:
    attack = (
        "<img src=x onerror=alert(1)><script>alert(1)</script>"
        "[a](javascript:alert(1)) ![b](https://evil.example/b.png)\n\n```<b>\n</code><svg onload=a>"
    )
    answer = {"role": "assistant", "text": attack, "reasoning": attack, "finish": "stop"}
    call = {"id": "1", "name": attack, "arguments": attack}
    messages = [
        {"role": "user", "text": attack},
        {**answer, "calls": [call]},
        {"role": "tool", "callId": "1", "text": attack},
        {**answer, "error": {"title": attack, "message": attack, "hint": attack}},
    ]
    chat.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    conversation = {"title": attack[:70], "messages": messages}
    chat.import_file({"format": "astrai-conversations", "conversations": [conversation]})
    chat.links.first.click()
    expect(chat.answers).to_have_count(2)
    transcript = chat.page.locator("#messages")
    expect(transcript.locator("img, script, iframe, [onerror], [onload]")).to_have_count(0)
    assert set(transcript.locator("a").evaluate_all("(links) => links.map((a) => a.href)")) == {
        "https://evil.example/b.png"
    }


def test_everything_by_keyboard(chat: ChatPageDriver) -> None:
    page = chat.page
    expect(chat.message).to_be_focused()
    page.keyboard.type("Say")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("hello.")
    expect(chat.message).to_have_value("Say\nhello.")
    page.keyboard.press("Enter")
    chat.wait_for_end(1)
    expect(chat.message).to_be_focused()
    chat.tab_to("Answer again", "Shift+Tab")
    chat.tab_to("Edit the message", "Shift+Tab")
    chat.tab_to("Parameters", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(chat.parameters).to_be_visible()
    chat.tab_to("Reset to defaults")
    page.keyboard.press("Enter")
    expect(chat.parameters.locator("[name=temperature]")).to_have_value("")
    chat.tab_to("More about “Say”", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(chat.button("Rename")).to_be_focused()
    page.keyboard.press("Escape")
    expect(chat.button("Rename")).to_be_hidden()
    chat.tab_to("Skip to the message field", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(chat.message).to_be_focused()


RICH = """# A *heading*
Text, `code`, [a link](https://x.example) and

> a quote

```python
print()
```

| a | b |
|---|---|
| c | d |
"""


def test_names_contrast_and_narrow_screens(chat: ChatPageDriver) -> None:
    chat.set(reasoning_effort="high", tools=json.dumps([WEATHER]))
    chat.ask("Weather in Paris, please.")
    answer = {"role": "assistant", "text": RICH, "reasoning": "Hm.", "finish": "length"}
    failed = {**answer, "error": {"title": "a", "message": "b", "hint": "c"}}
    image = f"data:image/png;base64,{base64.b64encode(BLUE.read_bytes()).decode()}"
    messages = [{"role": "user", "text": "Hello", "images": [image]}, answer, failed]
    chat.import_file({"format": "astrai-conversations", "conversations": [{"messages": messages}]})
    chat.attach(BLUE)
    for title in ("Weather in Paris, please.", "Hello"):
        chat.links.filter(has_text=title).click()
        expect(chat.page.get_by_role("heading", name=title, level=1)).to_be_visible()
        for summary in chat.page.locator("summary").all():
            summary.click()
        chat.message.fill("text")
        for scheme in ("light", "dark"):
            chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert chat.faint_texts() == {}
            assert chat.unnamed_controls() == []
    chat.button("Theme: system").click()
    expect(chat.button("Theme: light")).to_be_visible()
    assert chat.faint_texts() == {}
    chat.page.set_viewport_size({"width": 320, "height": 640})
    main = chat.page.locator("main")
    assert main.evaluate("(main) => [main.scrollWidth, document.body.scrollWidth]") == [320, 320]
    chat.button("Conversations").click()
    expect(chat.page.get_by_role("navigation")).to_be_visible()
    expect(main).to_have_js_property("inert", True)
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("navigation")).to_be_hidden()
    expect(chat.button("Conversations")).to_be_focused()
