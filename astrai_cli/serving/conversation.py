"""From a conversation, whatever protocol it came in, to a prompt and what reads its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from astrai_cli.engine.request import ImageInput
from astrai_cli.models.image import count_rows
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.images import check_images, place_images
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.parsers import OutputParser
from astrai_cli.serving.reasoning import Effort
from astrai_cli.serving.transcripts import ChatPrompt


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request asks to be answered.

    tools: those the model may call, as OpenAI's protocol declares them. effort: how much
    to reason, thinks: whether at all; None leaves it to the template.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    effort: Effort | None = None
    thinks: bool | None = None


class ChatInput(NamedTuple):
    """A conversation that was checked. make_parser: of what reads one answer to it."""

    prompt: ChatPrompt
    images: tuple[ImageInput, ...]
    make_parser: Callable[[], OutputParser]


def prepare_chat(
    conversation: Conversation,
    engine: ServingEngine,
    session_id: str | None,
    max_tokens: int | None = None,
) -> ChatInput:
    """The prompt of a conversation that is to be answered.

    max_tokens: of the answer, for which the context must have room beside the prompt.
    Raises as encode_conversation does, and ContextOverflowError.
    """
    answer = max_tokens or 1
    chat = encode_conversation(conversation, engine, session_id, answer)
    if not chat.images:
        # Of an image the worker tells how many tokens it is.
        engine.check_room(len(chat.prompt.ids), answer, param="messages")
    return chat


def encode_conversation(
    conversation: Conversation, engine: ServingEngine, session_id: str | None, answer: int = 1
) -> ChatInput:
    """The prompt of a conversation, of any length; in a session, with the ids of its answers.

    Raises RequestError for what the model cannot do (tools, images, effort),
    InvalidToolSchemaError, InvalidInputError, and ContextOverflowError for a text that no
    tokens make fit beside an answer of `answer` tokens.
    """
    messages = conversation.messages
    images = check_images(messages, engine.client.hello.model.max_image_patches)
    tools = engine.format.tool_set(conversation.tools)
    variables = engine.format.variables(
        conversation.tools, conversation.effort, conversation.thinks
    )
    prompt = engine.encode_chat(messages, variables, session_id, answer)
    prompt_end = engine.prompt_end(prompt)
    return ChatInput(
        prompt,
        place_images(images, prompt.ids, engine.image_frame),
        lambda: engine.format.make_parser(tools, prompt_end),
    )


def count_prompt(chat: ChatInput, engine: ServingEngine) -> int:
    """The tokens of a prompt, an image's rows in the place of what stands for it.

    Raises InvalidInputError for what is no image.
    """
    model = engine.client.hello.model
    rows = [
        count_rows(image.data, model.image_cell, model.max_image_patches) for image in chat.images
    ]
    return len(chat.prompt.ids) + sum(rows) - len(rows)
