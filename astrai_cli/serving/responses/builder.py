"""The responses protocol: its answers, whole and as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astrai_cli.engine.request import GenerationRequest, Usage
from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.body import UNSUPPORTED
from astrai_cli.serving.builder import Prepared, ResponseBuilder, ResponseContext
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.conversation import ChatInput, Conversation, prepare_chat
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem, RequestError, openai_error
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.openai.chat import answer_message
from astrai_cli.serving.openai.logprobs import logprobs_object
from astrai_cli.serving.responses.items import chat_messages
from astrai_cli.serving.responses.output import ended_response, new_id, output_items
from astrai_cli.serving.responses.requests import ResponseRequest
from astrai_cli.serving.responses.stream import ResponseEvents
from astrai_cli.serving.transport.sse import named_event


class ResponsesBuilder(ResponseBuilder[ResponseRequest]):
    """One response. It is kept nowhere: every request brings the whole conversation."""

    request_model = ResponseRequest

    def __init__(self) -> None:
        self._request: ResponseRequest | None = None
        self._events: ResponseEvents | None = None

    def prepare(
        self, request: ResponseRequest, engine: ServingEngine, session_id: str | None
    ) -> Prepared:
        engine.check_model(request.model)
        if request.n_logprobs is not None and engine.format.writes_special:
            # They come token by token, and the tokens of a reasoning are not of the text.
            raise RequestError(
                "log probabilities of a model that reasons are told by chat completions only",
                status=400,
                code=UNSUPPORTED,
                param="top_logprobs" if request.top_logprobs else "include",
            )
        self._request = request
        chat = _prepare_chat(request, engine, session_id)
        ctx = ResponseContext(
            id=new_id("resp"),
            model=engine.model_id,
            request=GenerationRequest(
                prompt=chat.prompt.ids,
                sampling=request.sampling(),
                max_tokens=request.max_output_tokens,
                images=chat.images,
                stop_token_ids=tuple(request.stop_token_ids),
                ignore_eos=request.ignore_eos,
                write_special=engine.format.writes_special,
                header_ids=engine.format.header_ids,
                logprobs=request.n_logprobs,
                session_id=session_id,
            ),
            token_bytes=engine.token_bytes,
            make_parser=chat.make_parser,
            stream=request.stream,
        )
        return Prepared(ctx, chat.prompt)

    def format_stream_start(self, ctx: ResponseContext, usage: Usage) -> str:
        self._events = ResponseEvents(ctx, self._asked)
        return self._events.start()

    def format_chunk(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        deltas = [(delta.channel, delta.text) for delta in news.deltas]
        if not news.logprobs:
            return "".join(self._stream.text(*delta) for delta in deltas)
        # All the text of a model that has them is content.
        text = "".join(text for _, text in deltas)
        logprobs = logprobs_object(news.logprobs, ctx.token_bytes)["content"] or []
        return self._stream.text("content", text, logprobs)

    def format_choice_end(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        return self.format_chunk(ctx, choice, news) + self._stream.end_choice(choice)

    def format_stream_end(self, ctx: ResponseContext, choices: Sequence[Choice]) -> str:
        return self._stream.end(choices[0])

    def format_response(self, ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
        (choice,) = choices
        return ended_response(ctx, self._asked, list(output_items(ctx, choice)), choice)

    def message(self, ctx: ResponseContext, choice: Choice) -> ChatMessage:
        return ChatMessage.model_validate(answer_message(choice))

    def format_error(self, problem: Problem) -> dict[str, Any]:
        return openai_error(problem)

    def format_stream_error(self, problem: Problem) -> str:
        if self._events is not None:
            return self._events.fail({"code": _code(problem), "message": problem.message})
        event = {
            "type": "error",
            "sequence_number": 0,
            "code": problem.code,
            "message": problem.message,
            "param": problem.param,
        }
        return named_event("error", event)

    @property
    def _asked(self) -> ResponseRequest:
        assert self._request is not None
        return self._request

    @property
    def _stream(self) -> ResponseEvents:
        assert self._events is not None
        return self._events


def _prepare_chat(
    request: ResponseRequest, engine: ServingEngine, session_id: str | None
) -> ChatInput:
    messages = chat_messages(request.instructions, request.input)
    conversation = Conversation(messages, request.active_tools, request.reasoning.effort)
    try:
        return prepare_chat(conversation, engine, session_id, request.max_output_tokens)
    except (InvalidInputError, RequestError) as error:
        # The places of the messages are not those of the items.
        if (error.param or "").startswith("messages"):
            error.param = "input"
        raise


def _code(problem: Problem) -> str:
    """The code that the protocol has for an error."""
    if problem.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if problem.status >= 500 else "invalid_prompt"
