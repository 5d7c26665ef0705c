"""What answers with drafts are compared for: requests to the trained model, of every kind.

They are the fixture's prompts, cut and put together anew: system messages with the users of
others and other strengths of reasoning, answers that have begun, images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

from muse_fixtures import CHAT, CHAT_MODEL, chat_cases, image_cases

from astrai_cli.engine.request import GenerationRequest, ImageInput, SamplingParams
from astrai_cli.models.text import TextModel

GREEDY = SamplingParams(temperature=0)
MAX_TOKENS = 48
N_EACH = 20
SHORT_PROMPT = 80
SHORT_ANSWER = 24

_STRENGTHS = ("low", "medium", "high")
_USER = "<|start|>user"
_NEXT_TURN = "<|start|>user<|message|>Weather in Prague, please.<|eot|><|start|>assistant"
_PATCH = "<|patch|>"
_STOPS = (
    ("e", "the"),
    ("weather",),
    (" I", "."),
    ("assistant", "tool"),
    (">",),
    ("ver", "\n", "look up the"),
    ("user",),
    ("cannot write", "18"),
)


@dataclass(frozen=True, slots=True)
class Talk:
    """A request, and what its client does besides.

    kind: what it is there for. follow: tokens behind the answer in a second request of its
    session; none where there is no second. leaves_after: tokens after which it cancels.
    """

    kind: str
    request: GenerationRequest
    follow: tuple[int, ...] = ()
    leaves_after: int | None = None


def greedy_talks() -> list[Talk]:
    """200 of them: N_EACH of every kind."""
    return [make(number) for number in range(N_EACH) for make in _KINDS]


def sampled_talks() -> list[Talk]:
    """N_EACH with a temperature and a seed, for backends whose logits depend on nothing else."""
    return [_sampled(number) for number in range(N_EACH)]


def short_talks(talks: Iterable[Talk]) -> list[Talk]:
    """Those with short prompts, for short answers, the kinds in turn as long as there are any."""
    by_kind: dict[str, list[Talk]] = {}
    for talk in talks:
        request = talk.request
        assert request.max_tokens is not None
        if len(request.prompt) <= SHORT_PROMPT:
            short = replace(request, max_tokens=min(request.max_tokens, SHORT_ANSWER))
            by_kind.setdefault(talk.kind, []).append(replace(talk, request=short))
    rounds = zip_longest(*by_kind.values())
    return [talk for each in rounds for talk in each if talk is not None]


def _sampled(number: int) -> Talk:
    sampling = SamplingParams(
        temperature=(0.6, 1.0, 1.7)[number % 3],
        top_k=(0, 5, 50)[number % 3],
        top_p=(1.0, 0.8)[number % 2],
        min_p=(0.0, 0.05)[number // 2 % 2],
        seed=number,
        repetition_penalty=(1.0, 1.2)[number // 3 % 2],
        frequency_penalty=(0.0, 0.4)[number // 4 % 2],
    )
    return Talk("sampled", _request(number, 3, sampling=sampling))


def _whole(number: int) -> Talk:
    return Talk("whole", _request(number, number // 16))


def _mixed(number: int) -> Talk:
    return Talk("mixed", _request(number, 5))


def _begun(number: int) -> Talk:
    """The answer has begun, or another one has."""
    begun = chat_cases()[(number + 1 + number % 2) % 16]["greedy_ids"][: 1 + number]
    request = _request(number, 1)
    return Talk("begun", replace(request, prompt=(*request.prompt, *begun)))


def _short(number: int) -> Talk:
    """The length ends it, most often inside a block."""
    return Talk("short", _request(number, 2, max_tokens=1 + number))


def _stopped(number: int) -> Talk:
    return Talk("stopped", _request(number, 6, stop=_STOPS[number % len(_STOPS)]))


def _stopped_by_id(number: int) -> Talk:
    """By a token that the answer to the same user has somewhere."""
    answer = chat_cases()[(number + 1) % 16]["greedy_ids"]
    stop = answer[(5 * number + 3) % len(answer)]
    return Talk("stopped by id", _request(number, 1, stop_token_ids=(stop,)))


def _session(number: int) -> Talk:
    request = _request(number, 7, session_id=f"session {number}")
    return Talk("session", request, follow=_next_turn())


def _image(number: int) -> Talk:
    """Every other is the first turn of a session."""
    case = image_cases()[number % 6]
    before = _system_of(case["before"], number) + _user_of(case["before"])
    after = image_cases()[(number + number // 6) % 6]["after"]
    prompt = _ids(f"{before}<|image_start|>{_PATCH}<|image_end|>{after}")
    patch = prompt.index(_text_model().tokenizer.token_to_id(_PATCH))
    image = ImageInput((CHAT / case["image"]).read_bytes(), patch)
    request = GenerationRequest(prompt, GREEDY, MAX_TOKENS, images=(image,))
    if number % 2:
        return Talk("image", request)
    request = replace(request, session_id=f"picture {number}")
    return Talk("image", request, follow=_next_turn())


def _cancelled(number: int) -> Talk:
    return Talk("cancelled", _request(number, 4), leaves_after=1 + number)


def _with_logprobs(number: int) -> Talk:
    return Talk("with logprobs", _request(number, 9, logprobs=number % 4))


_KINDS: tuple[Callable[[int], Talk], ...] = (
    _whole,
    _mixed,
    _begun,
    _short,
    _stopped,
    _stopped_by_id,
    _session,
    _image,
    _cancelled,
    _with_logprobs,
)


def _request(number: int, shift: int, **options: Any) -> GenerationRequest:
    """Case `number` as it is, or its system message before the user of a later case."""
    cases = chat_cases()
    system, user = cases[number % 16]["prompt"], cases[(number + shift) % 16]["prompt"]
    text = _system_of(system, number + shift) + _user_of(user) if shift else system
    given = {"sampling": GREEDY, "max_tokens": MAX_TOKENS, **options}
    return GenerationRequest(_ids(text), **given)


def _system_of(prompt: str, number: int) -> str:
    """Its system message, but for the strength of reasoning; every third time none."""
    head, _, _ = prompt.partition(_USER)
    strength = _STRENGTHS[number // 3 % 3]
    return "" if number % 3 == 2 else re.sub(r"(?<=Reasoning strength: )\w+", strength, head)


def _user_of(prompt: str) -> str:
    _, user, tail = prompt.partition(_USER)
    return user + tail


@cache
def _text_model() -> TextModel:
    return TextModel.read(CHAT_MODEL)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(_text_model().encode_prompt(text))


def _next_turn() -> tuple[int, ...]:
    return tuple(_text_model().encode(_NEXT_TURN))
