"""What the server and its worker say to each other: one JSON object a line, UTF-8.

The server sends commands to the worker's stdin, the worker sends reports to its
stdout. Both directions are bounded; a line that is too long or is no frame is
reported by the decoder and survived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from astrai_cli.config import MAX_CHOICES, MAX_REQUEST_BYTES
from astrai_cli.engine.request import Finish, GenerationRequest, Piece
from astrai_cli.errors import AstraiError, ContextNeed, error_of

PROTOCOL_VERSION = 6
MAX_REPORT_BYTES = 2**20
# What a message quotes may be of any length, and a report must not be.
MAX_MESSAGE_CHARS = 4096


class FrameError(AstraiError):
    """A line was not a frame: too long, not JSON, or of no known shape."""

    code = "bad_frame"


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue a prompt n times, all or none; ids id to id + n - 1 are those of the answers.

    Each is answered by pieces and a finish, or by an error, with its id.
    """

    id: int
    request: GenerationRequest
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    type: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the answer with this id; unknown ids are ignored, as it may just have ended."""

    id: int
    type: Literal["cancel"] = "cancel"


@dataclass(frozen=True, slots=True)
class StatsQuery:
    """Ask for the engine's statistics."""

    id: int
    type: Literal["stats"] = "stats"


@dataclass(frozen=True, slots=True)
class EndSession:
    """Reset a session, which forgets its history, or delete it; answered by a done or an error."""

    id: int
    session_id: str
    how: Literal["reset", "delete"]
    type: Literal["end_session"] = "end_session"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Refuse new requests, let running ones end, then exit."""

    type: Literal["shutdown"] = "shutdown"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model a worker serves.

    max_context: positions, prompt and answer together. max_image_patches: the most an
    image may have, larger ones are scaled down; 0: the model sees no images.
    image_cell: pixels that the part of an image behind one position is wide and high.
    """

    name: str
    architecture: str
    backend: str
    vocab_size: int
    max_context: int
    max_image_patches: int = 0
    image_cell: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests a worker admits, how many it runs at once, and of how many sessions."""

    max_inflight_requests: int
    max_decode_sequences: int
    max_sessions: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker's first report: it is ready."""

    model: ModelInfo
    capacity: Capacity
    protocol: int = PROTOCOL_VERSION
    type: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class PieceReport:
    """A stretch of the answer to request `id`."""

    id: int
    piece: Piece
    type: Literal["piece"] = "piece"


@dataclass(frozen=True, slots=True)
class FinishReport:
    """The end of the answer to request `id`."""

    id: int
    finish: Finish
    type: Literal["finish"] = "finish"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An AstraiError in the worker, sent by its code; id is None where no request is meant."""

    id: int | None
    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    need: ContextNeed | None = None
    type: Literal["error"] = "error"

    @classmethod
    def of(cls, error: AstraiError, request_id: int | None = None) -> ErrorReport:
        message = str(error)[:MAX_MESSAGE_CHARS]
        return cls(
            request_id,
            error.code,
            message,
            getattr(error, "param", None),
            getattr(error, "retry_after", None),
            getattr(error, "need", None),
        )

    def error(self) -> AstraiError:
        """The error as it was raised in the worker, of the same class."""
        return error_of(self.code, self.message, self.param, self.retry_after, self.need)


@dataclass(frozen=True, slots=True)
class StatsReport:
    """The engine's statistics, in answer to a query."""

    id: int
    stats: dict[str, Any] = field(default_factory=dict)
    type: Literal["stats"] = "stats"


@dataclass(frozen=True, slots=True)
class Done:
    """A command that is answered by nothing else was carried out."""

    id: int
    type: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class SessionEvicted:
    """A session gave way to another one, and is no more."""

    session_id: str
    type: Literal["session_evicted"] = "session_evicted"


Command = Annotated[
    Generate | Cancel | StatsQuery | EndSession | Shutdown, Field(discriminator="type")
]
Report = Annotated[
    Hello | PieceReport | FinishReport | ErrorReport | StatsReport | Done | SessionEvicted,
    Field(discriminator="type"),
]

Frame = TypeVar("Frame")


class FrameCodec(Generic[Frame]):
    """Encodes and decodes the frames of one direction, at most `limit` bytes with the newline."""

    def __init__(self, adapter: TypeAdapter[Frame], limit: int) -> None:
        self._adapter = adapter
        self.limit = limit

    def limited_to(self, limit: int) -> FrameCodec[Frame]:
        """The same frames, at most `limit` bytes each."""
        return FrameCodec(self._adapter, limit)

    def encode(self, frame: Frame) -> bytes:
        """The frame's line. Raises FrameError when it is over the limit."""
        line = self._adapter.dump_json(frame) + b"\n"
        if len(line) > self.limit:
            raise FrameError(f"frame of {len(line)} bytes is over the limit of {self.limit}")
        return line

    def parse(self, line: bytes | bytearray) -> Frame:
        """The frame on a line without its newline. Raises FrameError."""
        try:
            return self._adapter.validate_json(line, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise FrameError(f"malformed frame: {where}: {first['msg']}") from None


# Bytes travel as base64.
_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

COMMANDS: FrameCodec[Command] = FrameCodec(TypeAdapter(Command, config=_BASE64), MAX_REQUEST_BYTES)
REPORTS: FrameCodec[Report] = FrameCodec(TypeAdapter(Report), MAX_REPORT_BYTES)


class FrameDecoder(Generic[Frame]):
    """Finds frames in a byte stream that arrives in pieces of any size.

    Holds at most the codec's limit of bytes; what is over it is skipped up to
    the next newline and reported once.
    """

    def __init__(self, codec: FrameCodec[Frame]) -> None:
        self._codec = codec
        self._line = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> list[Frame | FrameError]:
        """The frames, and errors in their places, of the lines that end in `data`."""
        *ends, rest = data.split(b"\n")
        found: list[Frame | FrameError] = []
        for end in ends:
            self._append(end)
            if self._too_long:
                found.append(FrameError(f"frame is over the limit of {self._codec.limit} bytes"))
            elif self._line:
                found.append(self._parse())
            self._line.clear()
            self._too_long = False
        self._append(rest)
        return found

    def _append(self, part: bytes) -> None:
        if self._too_long or len(self._line) + len(part) >= self._codec.limit:
            self._too_long = True
            self._line.clear()
        else:
            self._line += part

    def _parse(self) -> Frame | FrameError:
        try:
            return self._codec.parse(self._line)
        except FrameError as error:
            return error
