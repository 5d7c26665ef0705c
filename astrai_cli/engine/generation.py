"""What tasks are for: answers to prompts, and the logits of texts."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.detokenize import Detokenizer, TokenBytes
from astrai_cli.engine.prompts import PreparedPrompt
from astrai_cli.engine.request import (
    Finish,
    FinishReason,
    GenerationRequest,
    Piece,
    TokenLogprob,
    Usage,
)
from astrai_cli.engine.sampling import (
    MAX_SEED,
    SamplingPipeline,
    check_logprobs,
    choice_seed,
    token_logprob,
)
from astrai_cli.engine.sessions import Turn
from astrai_cli.engine.stops import MessageHeaders, StopMatcher
from astrai_cli.engine.task import Sink, Task, TaskState
from astrai_cli.errors import AstraiError, ExecutionError
from backends.base import Draw, ExecutorInfo


class GenerationTask(Task):
    """Continues a prompt, token by token; a step that checks guesses may give several."""

    def __init__(
        self,
        request: GenerationRequest,
        prompt: PreparedPrompt,
        n_tokens_max: int,
        sink: Sink,
        *,
        end_ids: Collection[int],
        token_bytes: TokenBytes,
        choice: int = 0,
    ) -> None:
        """prompt: the request's. choice: the number of this answer among those of the request.

        Raises InvalidInputError for sampling parameters or stops out of bounds.
        """
        super().__init__(
            prompt,
            n_tokens_max,
            sink,
            session_id=request.session_id,
            timeout=request.timeout,
        )
        check_logprobs(request.logprobs)
        seed = request.sampling.seed
        self._pipeline = SamplingPipeline.from_params(
            request.sampling,
            secrets.randbelow(MAX_SEED) if seed is None else choice_seed(seed, choice),
            request.prompt,
        )
        self._n_logprobs = request.logprobs
        self._end_ids = frozenset(request.stop_token_ids)
        if not request.ignore_eos:
            self._end_ids |= frozenset(end_ids)
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer(token_bytes, write_special=request.write_special)
        self._stops = StopMatcher(request.stop)
        self._headers = MessageHeaders(request.header_ids, request.prompt)
        self._end_text = ""
        self._rest = ""
        self._takes_drafts = request.drafts
        self._n_proposed = 0
        self._n_accepted = 0

    @property
    def n_reusable(self) -> int:
        """All but the last token, whose logits are wanted."""
        return self.n_known - 1

    @property
    def n_draft_max(self) -> int:
        return super().n_draft_max if self._takes_drafts else 0

    @property
    def goes_on_unseen(self) -> bool:
        return not (self._pipeline.remembers or self.cancel_requested)

    def end(self, reason: FinishReason, error: AstraiError | None = None) -> None:
        if self.state is not TaskState.FINISHED:
            rest = self._stops.feed(self._detokenizer.flush())
            self._rest = rest + self._stops.flush(self._end_text)
        super().end(reason, error)

    def turn(self) -> Turn | None:
        if self._reason not in {"stop", "length"}:
            return None
        return Turn(self.identity.copy(), self.n_prompt)

    def finish(self) -> Finish:
        finish = super().finish()
        usage = dataclasses.replace(
            finish.usage,
            accepted_tokens=self._n_accepted,
            rejected_tokens=self._n_proposed - self._n_accepted,
        )
        return dataclasses.replace(finish, usage=usage, matched_stop=self._stops.matched)

    def deliver(self) -> None:
        """Send what text is still held back, then the Finish."""
        if self._rest:
            self._sink(Piece(self._rest, ()))
        super().deliver()

    def _logit_rows(self, n: int) -> int:
        return 1 + self.n_drafted if n == self.n_pending + self.n_drafted else 0

    def _draws(self, info: ExecutorInfo, n_unseen: int = 0) -> tuple[Draw, ...]:
        if self._n_logprobs is not None:
            return ()
        guesses = self.history[self.n_known : self.n_known + self.n_drafted].tolist()
        return self._pipeline.draws(self.n_known - self.n_prompt + n_unseen, guesses, info)

    def _accept(self, logits: NDArray[np.float32], drawn: Sequence[int]) -> None:
        """Take the next token, and as long as it is the guessed one, the one behind it."""
        first = self.n_known
        guesses = self.history[first : first + self.n_drafted].tolist()
        self.n_drafted = 0
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        while True:
            row = self.n_known - first
            token_id = self._observe(drawn[row]) if drawn else self._sample(logits[row])
            texts.append(self._take(token_id))
            if self._n_logprobs is not None and token_id not in self._end_ids:
                logprobs.append(token_logprob(logits[row], token_id, self._n_logprobs))
            if self.state is TaskState.FINISHED or guesses[row : row + 1] != [token_id]:
                break
            self.n_computed += 1
        self._n_proposed += len(guesses)
        self._n_accepted += self.n_known - first - 1
        self._send("".join(texts), first, tuple(logprobs))

    def _sample(self, logits: NDArray[np.float32]) -> int:
        return self._pipeline.sample(logits, self.n_known - self.n_prompt)

    def _observe(self, drawn: int) -> int:
        if drawn < 0:
            raise ExecutionError("the model's logits hold NaN or have no finite maximum")
        self._pipeline.observe(drawn)
        return drawn

    def _take(self, token_id: int) -> str:
        """Append the answer's next token and end the answer where it ends it; its text."""
        self.append(token_id)
        if token_id in self._end_ids:
            self._end_text = self._token_bytes.named(token_id).decode(errors="replace")
            self.end("stop")
            return ""
        text = self._detokenizer.feed(token_id)
        if self._headers.take(token_id):
            text = self._stops.flush() + text
        else:
            text = self._stops.feed(text)
        if self._stops.matched is not None:
            self.end("stop")
        elif self.n_known == self.n_tokens_max:
            self.end("length")
        return text

    def _send(self, text: str, first: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Send the tokens from position `first` on."""
        is_first = first == self.n_prompt
        prompt = Usage(self.n_prompt, 0, self.n_reused) if is_first else None
        self._sink(
            Piece(text, tuple(self.history[first : self.n_known].tolist()), logprobs, prompt)
        )


class ScoringTask(Task):
    """Runs a sequence and keeps all its logits: float32 [tokens, vocabulary]."""

    def __init__(self, prompt: PreparedPrompt, vocab_size: int, sink: Sink) -> None:
        super().__init__(prompt, len(prompt), sink)
        self.logits: NDArray[np.float32] = np.empty((len(prompt), vocab_size), np.float32)
        self._n_scored = 0

    @property
    def n_reusable(self) -> int:
        """Those whose logits are known, when it was preempted."""
        return self._n_scored

    def _logit_rows(self, n: int) -> int:
        return n

    def _accept(self, logits: NDArray[np.float32], drawn: Sequence[int]) -> None:
        self.logits[self.n_computed - len(logits) : self.n_computed] = logits
        self._n_scored = max(self._n_scored, self.n_computed)
        if not self.n_pending:
            self.end("length")
