"""Named sessions over HTTP, of SmolLM2: its wild answers are not the ids their text encodes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess, running_server

from astrai_cli.loading import RunnableModel
from astrai_cli.models.text import TextModel

WORDS = ["Why?", "And then?", "How so?", "Where?", "No."]


@pytest.fixture(scope="module")
def server(smollm2: RunnableModel) -> Iterator[ServerProcess]:
    limits = {"max_context": 2048, "threads": None, "max_sessions": 4}
    with running_server(smollm2.source, smollm2.backend, limits=limits) as server:
        yield server


@pytest.fixture(autouse=True)
def no_sessions(server: ServerProcess) -> None:
    with server.http() as http:
        for name in ("twenty", "edited", "changed", "streamed", "stopped", "reset", "busy", *"abc"):
            http.delete(f"/v1/sessions/{name}")


class Talk:
    """A client that keeps its conversation and sends all of it each time."""

    def __init__(self, server: ServerProcess, session_id: str | None, **options: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        self._server = server
        self._options = {"max_tokens": 6, "temperature": 2.0, **options}
        self._headers = {} if session_id is None else {"X-Session-ID": session_id}

    def say(self, text: str, **options: Any) -> dict[str, Any]:
        """Send a message; the usage of its answer."""
        self.messages.append({"role": "user", "content": text})
        body = {"messages": self.messages, **self._options, **options}
        with self._server.http() as http:
            response = http.post("/v1/chat/completions", json=body, headers=self._headers)
            answer = response.raise_for_status().json()
        self.messages.append(answer["choices"][0]["message"])
        usage: dict[str, Any] = answer["usage"]
        return {**usage, "cached": usage["prompt_tokens_details"]["cached_tokens"]}


def test_each_of_twenty_turns_runs_only_its_new_tokens(
    server: ServerProcess, smollm2: RunnableModel
) -> None:
    talk = Talk(server, "twenty")
    text = TextModel.read(smollm2.source)
    n_as_text = 0
    before = server.stats()["tokens_prefilled"]
    n_history = n_new = n_sent = 0
    for number in range(20):
        usage = talk.say(WORDS[number % len(WORDS)], seed=number)
        # The last token of an answer was never run itself.
        assert usage["cached"] == max(0, n_history - 1)
        n_new += usage["prompt_tokens"] - usage["cached"]
        n_sent += usage["prompt_tokens"]
        n_history = usage["prompt_tokens"] + usage["completion_tokens"]
        n_as_text += len(text.tokenizer.encode(talk.messages[-1]["content"]).ids)
    assert server.stats()["tokens_prefilled"] - before == n_new
    # All but the answers' tokens, once, and again the last token of each answer gone on from.
    assert n_new == n_history - 20 * 6 + 19
    assert n_new < n_sent / 10
    # The text of some answers would have been encoded as other ids.
    assert n_as_text != 20 * 6


def test_an_edited_history_goes_on_from_what_precedes_the_edit(server: ServerProcess) -> None:
    talk = Talk(server, "edited")
    first, second, third = (talk.say(word, seed=n) for n, word in enumerate(WORDS[:3]))
    assert third["cached"] == second["prompt_tokens"] + second["completion_tokens"] - 1
    kept = first["prompt_tokens"] + first["completion_tokens"]
    talk.messages = [
        *talk.messages[:2],
        {"role": "user", "content": "Another question?"},
        *talk.messages[3:],
    ]
    edited = talk.say("Hm?")
    # Whole pages of what is still the same, and nothing of the answers after the edit.
    assert kept - 32 <= edited["cached"] < second["prompt_tokens"]


def test_answers_that_a_client_changed_are_taken_as_text(server: ServerProcess) -> None:
    talk = Talk(server, "changed")
    first = talk.say("Tell me a story.", seed=1)
    talk.messages[-1]["content"] = "Once upon a time."
    assert talk.say("Go on.")["cached"] < first["prompt_tokens"]


def test_a_streamed_turn_is_gone_on_from_too(server: ServerProcess) -> None:
    talk = Talk(server, "streamed")
    client = server.openai()
    text, usage = "", None
    talk.messages.append({"role": "user", "content": "Hello!"})
    for chunk in client.chat.completions.create(
        model="astrai",
        messages=talk.messages,  # type: ignore[arg-type]  # plain dicts, as many clients have
        max_tokens=6,
        temperature=2,
        seed=5,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"session_id": "streamed"},
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage
    assert usage is not None
    talk.messages.append({"role": "assistant", "content": text})
    assert talk.say("And?")["cached"] == usage.total_tokens - 1


@pytest.mark.parametrize("by", ["stop", "stop_token_ids"])
def test_an_answer_cut_at_a_stop_is_taken_as_text(
    server: ServerProcess, smollm2: RunnableModel, by: str
) -> None:
    paris = TextModel.read(smollm2.source).tokenizer.encode(" Paris").ids
    talk = Talk(server, "stopped", temperature=0, max_tokens=20)
    cut = talk.say("What is the capital of France?", **{by: {"stop": ["Paris"]}.get(by, paris)})
    assert "Paris" not in talk.messages[-1]["content"]
    # What was generated and not shown is not in the next prompt.
    assert talk.say("And of Italy?")["cached"] < cut["total_tokens"] - 1


def test_the_body_goes_before_the_headers_and_these_in_their_order(server: ServerProcess) -> None:
    def turn(headers: dict[str, str], **body: Any) -> None:
        message = {"role": "user", "content": "Hi"}
        body |= {"messages": [message], "max_tokens": 1}
        with server.http() as http:
            http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()

    names = {"x-session-affinity": "third", "session_id": "second", "X-Session-ID": "first"}
    with server.http() as http:
        turn(names, session_id="body/1")
        assert http.delete("/v1/sessions/body%2F1").json()["deleted"] is True
        for header, name in (("X-Session-ID", "first"), ("session_id", "second")):
            turn(names)
            assert http.post(f"/v1/sessions/{name}/reset").json()["reset"] is True
            assert http.delete(f"/v1/sessions/{name}").status_code == 200
            del names[header]
        turn(names)
        assert http.delete("/v1/sessions/third").status_code == 200
        missing = http.delete("/v1/sessions/third")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "session_not_found")
    assert server.stats()["sessions"] == 0


def test_a_reset_session_starts_anew(server: ServerProcess) -> None:
    talk = Talk(server, "reset")
    first = talk.say("Tell me a story.", seed=1)
    with server.http() as http:
        http.post("/v1/sessions/reset/reset").raise_for_status()
    assert talk.say("Go on.")["cached"] <= first["prompt_tokens"]


def test_a_session_in_use_is_not_ended_and_a_full_table_is_told(server: ServerProcess) -> None:
    with server.http() as http:
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "session_id": "busy",
            "ignore_eos": True,
            "stream": True,
        }
        with http.stream("POST", "/v1/chat/completions", json=body):
            for path, method in (("busy", "DELETE"), ("busy/reset", "POST")):
                busy = http.request(method, f"/v1/sessions/{path}")
                assert (busy.status_code, busy.json()["error"]["code"]) == (409, "session_busy")
        for name in "abc":
            Talk(server, name).say("Hi")
        body |= {"stream": False, "max_tokens": 1, "session_id": "d"}
        full = http.post("/v1/chat/completions", json=body)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "overloaded")
        # All of them stay, however long a client waits.
        assert "retry-after" not in full.headers


def test_idle_sessions_give_way_where_that_is_wanted(smollm2: RunnableModel) -> None:
    limits = {"max_context": 512, "max_sessions": 2, "evict_idle_sessions": True}
    with running_server(smollm2.source, smollm2.backend, limits=limits) as server:
        first = Talk(server, "a")
        first.say("Tell me a story.", seed=1)
        for name in ("b", "c", None):
            Talk(server, name).say("Hi")
        assert server.stats()["sessions"] == 1
        with server.http() as http:
            assert http.delete("/v1/sessions/a").status_code == 404
        # Its transcript is gone with it; its whole history makes it anew.
        first.say("Go on.")
        assert server.stats()["sessions"] == 2
