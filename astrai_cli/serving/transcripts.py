"""What a session's answers were in token ids, so that its next prompt goes on from the very ids.

A client sends the conversation as text with every turn, and the text of an answer
need not encode to the ids that were generated. A transcript holds the ids of a
session's last prompt and answer, with a mark for each answer in them. Where the
history of a new prompt has the same messages up to a mark, and then the answer the
client was shown, the ids up to the mark take the place of that text. So replay is
bound to all that went before an answer: after an edit only what precedes it is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astrai_cli.models.text import TextModel
from astrai_cli.serving.templates import Message

_REASONING = "reasoning_content"


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of an answer: digest of the messages up to and with it, and how many ids those are.

    n_messages: so many there are. n_tokens: all that were run or generated for them.
    reasoning: of the answer, as it was shown; a client need not send it back.
    """

    n_messages: int
    digest: bytes
    n_tokens: int
    reasoning: str | None = None

    def allows(self, messages: Sequence[Message]) -> bool:
        """Whether the answer's reasoning, where it is there again, is what was shown."""
        again = messages[self.n_messages - 1].get(_REASONING)
        return again in {None, self.reasoning}


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as a prompt. ids: its tokens. marks: the answers whose very ids are in them.

    n_messages, digest: of all messages, as a mark has them.
    """

    ids: tuple[int, ...]
    n_messages: int
    digest: bytes
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """The ids of a session's last prompt and answer: int32 [tokens]; marks in ascending order."""

    ids: NDArray[np.int32]
    marks: tuple[Mark, ...]


class Transcripts:
    """The transcripts of at most `capacity` sessions, those that answered last.

    Recorded and forgotten from one event loop; read from any thread.
    """

    def __init__(self) -> None:
        self._by_session: OrderedDict[str, Transcript] = OrderedDict()

    def get(self, session_id: str) -> Transcript | None:
        return self._by_session.get(session_id)

    def record(
        self,
        session_id: str,
        prompt: ChatPrompt,
        answer: Message,
        token_ids: Sequence[int],
        capacity: int,
    ) -> None:
        """Remember what was generated for a prompt, and the message it was shown as."""
        ids = np.array((*prompt.ids, *token_ids), dtype=np.int32)
        digest = _extend(prompt.digest, answer)
        mark = Mark(prompt.n_messages + 1, digest, len(ids), answer.get(_REASONING))
        self._by_session[session_id] = Transcript(ids, (*prompt.marks, mark))
        self._by_session.move_to_end(session_id)
        while len(self._by_session) > capacity:
            self._by_session.popitem(last=False)

    def forget(self, session_id: str | None) -> None:
        """Forget a session's transcript; None: those of all."""
        if session_id is None:
            self._by_session.clear()
        else:
            self._by_session.pop(session_id, None)


def encode_chat(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message], bool], str],
    text: TextModel,
    transcript: Transcript | None,
    options: Any = None,
) -> ChatPrompt:
    """The prompt of a conversation, with the ids of the transcript as far as they are its own.

    render: the text of messages, with or without the beginning of an answer after them.
    options: what else the text depends on, as JSON; a transcript is one of equal options.
    """
    digests = _digests(messages, options)
    whole = render(messages, True)
    for n_marks in range(len(transcript.marks) if transcript else 0, 0, -1):
        assert transcript is not None
        mark = transcript.marks[n_marks - 1]
        if mark.n_messages > len(messages) or digests[mark.n_messages] != mark.digest:
            continue
        if not all(each.allows(messages) for each in transcript.marks[:n_marks]):
            continue
        rest = _rest(whole, render(messages[: mark.n_messages], False), text)
        if rest is None:
            break
        ids = transcript.ids[: mark.n_tokens].tolist()
        # The rest closes the answer, however that ended.
        if ids[-1] in text.special_tokens.eos:
            ids.pop()
        ids += text.encode(rest)
        return ChatPrompt(tuple(ids), len(messages), digests[-1], transcript.marks[:n_marks])
    return ChatPrompt(tuple(text.encode_prompt(whole)), len(messages), digests[-1])


def _rest(whole: str, before: str, text: TextModel) -> str | None:
    """What follows an answer, from the end token that closes it; None where that cannot be told.

    before: the rendered messages up to and with the answer.
    """
    if not whole.startswith(before):
        return None
    message = before.rstrip()
    ends = (text.tokenizer.id_to_token(end_id) for end_id in text.special_tokens.eos)
    closing = next((end for end in ends if end and message.endswith(end)), None)
    return None if closing is None else whole[len(message) - len(closing) :]


def _digests(messages: Sequence[Message], options: Any) -> list[bytes]:
    """A digest of the options with each number of messages, from none to all."""
    digests = [hashlib.sha256(_canonical(options)).digest()]
    for message in messages:
        digests.append(_extend(digests[-1], message))
    return digests


def _extend(digest: bytes, message: Message) -> bytes:
    kept = {key: value for key, value in message.items() if key != _REASONING}
    return hashlib.sha256(digest + _canonical(kept)).digest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
