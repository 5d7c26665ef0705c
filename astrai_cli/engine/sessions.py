"""Sessions: what is remembered from one request to the next."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from astrai_cli.engine.cache.base import Identity
from astrai_cli.errors import (
    InvalidInputError,
    OverloadedError,
    SessionBusyError,
    SessionNotFoundError,
)

MAX_ID_LENGTH = 256
# They cannot stand in the path of a URL, by which sessions are ended.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that ended well: what was generated, bound to exactly what was before it.

    history: one integer a position, the prompt's n_prompt and then the generated ids.
    """

    history: Identity
    n_prompt: int

    def is_continued_by(self, prompt: Identity) -> bool:
        """Whether the prompt is the history and at least one token more."""
        n = len(self.history)
        return len(prompt) > n and np.array_equal(prompt[:n], self.history)


@dataclass(slots=True, eq=False)
class Session:
    """A place for requests that follow each other; an anonymous one is for one request.

    turn: the last one; None before it, while a request runs, and after one that failed.
    owner: the task whose cells hold the turn's first n_computed positions; None: nobody.
    runner: the task that runs now; others of the session wait for it.
    """

    id: str | None
    n_requests: int = 0
    is_confirmed: bool = False
    turn: Turn | None = None
    owner: int | None = None
    n_computed: int = 0
    runner: int | None = None

    def is_free_for(self, task_id: int) -> bool:
        return self.runner in {None, task_id}

    def is_continued_by(self, prompt: Identity) -> bool:
        """Whether a prompt can go on from the cells of the last turn."""
        return (
            self.turn is not None and self.owner is not None and self.turn.is_continued_by(prompt)
        )


class SessionTable:
    """At most max_sessions: the named ones, and one for each anonymous request in flight.

    Not thread-safe; the scheduler's lock guards it. Cells that a session loses here
    are given back by whoever takes them from `take_dropped`.
    """

    def __init__(
        self,
        max_sessions: int,
        evict_idle: bool,
        on_evicted: Callable[[str], None] = lambda session_id: None,
    ) -> None:
        """on_evicted is told of every session that gives way; it must not block."""
        self._max_sessions = max_sessions
        self._evict_idle = evict_idle
        self._on_evicted = on_evicted
        self._named: OrderedDict[str, Session] = OrderedDict()  # used last, last
        self._n_anonymous = 0
        self._dropped: list[int] = []

    def __len__(self) -> int:
        return len(self._named) + self._n_anonymous

    @property
    def n_named(self) -> int:
        return len(self._named)

    @property
    def has_dropped(self) -> bool:
        return bool(self._dropped)

    def has_slots(self, session_id: str | None, n: int) -> bool:
        """Whether `open`, or n times `open_anonymous`, would succeed now."""
        n_free = self._max_sessions - len(self)
        return session_id in self._named or n <= n_free + self._n_evictable()

    def open_anonymous(self, n: int) -> list[Session]:
        """Sessions for n requests, one each. Raises OverloadedError where there are no n slots."""
        self._require_slots(n)
        self._n_anonymous += n
        return [Session(None, n_requests=1) for _ in range(n)]

    def open(self, session_id: str) -> Session:
        """The named session for one more request, made where there is none.

        Raises OverloadedError where there is no slot for it, and none idle to evict,
        and InvalidInputError for an id that is empty, too long or has control characters.
        """
        if not 1 <= len(session_id) <= MAX_ID_LENGTH:
            raise InvalidInputError(
                f"session_id has {len(session_id)} characters; it must have 1 to {MAX_ID_LENGTH}",
                param="session_id",
            )
        if _CONTROLS.search(session_id):
            raise InvalidInputError("session_id has control characters", param="session_id")
        if session_id not in self._named:
            self._require_slots(1)
            self._named[session_id] = Session(session_id)
        session = self._named[session_id]
        session.n_requests += 1
        self._named.move_to_end(session_id)
        return session

    def close(self, session: Session) -> None:
        """A request of the session has ended; one that never gave an answer leaves no session."""
        session.n_requests -= 1
        if session.id is None:
            self._n_anonymous -= 1
        elif session.n_requests == 0 and not session.is_confirmed:
            self._remove(session)

    def turn(self, session_id: str) -> Turn | None:
        """Raises SessionNotFoundError."""
        return self._get(session_id).turn

    def reset(self, session_id: str) -> None:
        """Forget what was said. Raises SessionNotFoundError, SessionBusyError."""
        self._forget(self._get_idle(session_id))

    def delete(self, session_id: str) -> None:
        """Raises SessionNotFoundError, SessionBusyError."""
        self._remove(self._get_idle(session_id))

    def release_cells(self, besides: Session | None = None) -> int | None:
        """The task that owns the cells of the session idle for longest, which loses them."""
        for session in self._named.values():
            if session.owner is not None and session is not besides:
                owner, session.owner = session.owner, None
                return owner
        return None

    def take_dropped(self) -> list[int]:
        """Tasks whose cells are to be given back."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _idle(self) -> Iterator[Session]:
        return (session for session in self._named.values() if not session.n_requests)

    def _n_evictable(self) -> int:
        return sum(1 for _ in self._idle()) if self._evict_idle else 0

    def _require_slots(self, n: int) -> None:
        """Evict idle sessions until there are n slots, where there can be so many."""
        n_missing = len(self) + n - self._max_sessions
        if n_missing <= 0:
            return
        if n_missing > self._n_evictable():
            # Named sessions that idle stay; only anonymous ones end by themselves.
            may_end = self._evict_idle or self._n_anonymous > 0
            raise OverloadedError(
                f"{len(self)} sessions are open, of at most {self._max_sessions}"
                + ("" if self._evict_idle else "; idle ones are not evicted"),
                retry_after=1.0 if may_end else None,
            )
        for session in tuple(islice(self._idle(), n_missing)):
            self._remove(session)
            assert session.id is not None
            self._on_evicted(session.id)

    def _get(self, session_id: str) -> Session:
        if session_id not in self._named:
            raise SessionNotFoundError(f"there is no session {session_id[:MAX_ID_LENGTH]!r}")
        return self._named[session_id]

    def _get_idle(self, session_id: str) -> Session:
        session = self._get(session_id)
        if session.n_requests:
            raise SessionBusyError(f"session {session_id!r} has requests in flight")
        return session

    def _forget(self, session: Session) -> None:
        session.turn = None
        if session.owner is not None:
            self._dropped.append(session.owner)
            session.owner = None

    def _remove(self, session: Session) -> None:
        self._forget(session)
        assert session.id is not None
        del self._named[session.id]
