"""The bounds of an engine's work, from what the user allows and what the executor can do."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import InvalidInputError
from backends.base import ExecutorInfo

# Beside running answers, prompts get this part of a chunk: their next tokens wait for it.
_SHARE_BESIDE_ANSWERS = 4


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """max_sequences run at once, of max_requests admitted; tokens are those of one step.

    queue_timeout: seconds. max_sessions: named ones and anonymous requests together.
    """

    max_sequences: int
    max_requests: int
    max_step_tokens: int
    max_chunk: int
    queue_timeout: float
    max_sessions: int
    evict_idle_sessions: bool

    @classmethod
    def resolve(cls, limits: LimitsConfig, info: ExecutorInfo) -> EngineLimits:
        """Raises InvalidInputError for a step that is larger than the artifact was built for."""
        for name in ("max_prefill_chunk", "max_step_tokens"):
            wanted = getattr(limits, name)
            if name in limits.model_fields_set and (wanted or 0) > info.max_step_tokens:
                raise InvalidInputError(
                    f"{name} is {wanted}, but the {info.backend} backend runs at most "
                    f"{info.max_step_tokens} tokens of this model in a step",
                    param=name,
                )
        max_step_tokens = min(limits.max_step_tokens or info.max_step_tokens, info.max_step_tokens)
        # Every answering sequence has a token in every step, and a prompt at least one.
        max_sequences = min(limits.max_decode_sequences, max_step_tokens)
        max_requests = limits.max_inflight_requests
        if limits.max_queue is not None:
            max_requests = min(max_requests, max_sequences + limits.max_queue)
        return cls(
            max_sequences=max_sequences,
            max_requests=max_requests,
            max_step_tokens=max_step_tokens,
            max_chunk=min(limits.max_prefill_chunk, max_step_tokens),
            queue_timeout=inf if limits.queue_timeout is None else limits.queue_timeout,
            max_sessions=limits.max_sessions or limits.max_inflight_requests,
            evict_idle_sessions=limits.evict_idle_sessions,
        )

    def prefill_room(self, n_decoding: int) -> int:
        """Prompt tokens that a step with n_decoding answering sequences may run."""
        if not n_decoding:
            return self.max_chunk
        beside = max(1, self.max_chunk // _SHARE_BESIDE_ANSWERS)
        return min(beside, self.max_step_tokens - n_decoding)
