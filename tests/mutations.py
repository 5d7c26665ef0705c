"""Bodies of requests that went wrong, each from a seed: what fuzzing throws at a server."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

JsonPath = tuple[str | int, ...]

_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    -(2**63),
    1e308,
    "",
    "text",
    "\x00",
    "\ud800",
    "😀" * 50,
    "a" * 5000,
    [],
    {},
    [[]],
    {"": {}},
    {"type": "text"},
    {"type": []},
    [{"role": "user", "content": "hi"}],
]
_RAW_NUMBERS = [
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"1" * 5000,
    b"-0",
    b"00",
    b"1e-400",
    b"+1",
]
_BYTES = [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\x00",
    b"\xef\xbb\xbf",
    b"\\u0000",
]


def mutated(body: dict[str, Any], seed: int) -> bytes:
    """A body of a request with one to three things wrong in it; always the same for a seed."""
    random = Random(seed)
    changed = copy.deepcopy(body)
    for _ in range(random.randint(0, 2)):
        random.choice(_ON_OBJECTS)(changed, random)
    # What has no UTF-8 travels as escapes, as json writes it.
    raw = json.dumps(changed).encode()
    return random.choice(_ON_BYTES)(raw, random)


def _paths(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from _paths(child, (*path, key))


def _parent(body: Any, path: JsonPath) -> Any:
    for step in path[:-1]:
        body = body[step]
    return body


def _replace(body: dict[str, Any], random: Random) -> None:
    if paths := list(_paths(body)):
        path = random.choice(paths)
        _parent(body, path)[path[-1]] = copy.deepcopy(random.choice(_VALUES))


def _remove(body: dict[str, Any], random: Random) -> None:
    if paths := list(_paths(body)):
        path = random.choice(paths)
        del _parent(body, path)[path[-1]]


def _nest(body: dict[str, Any], random: Random) -> None:
    if paths := list(_paths(body)):
        path = random.choice(paths)
        parent = _parent(body, path)
        for _ in range(random.choice([1, 30, 200])):
            kept = parent[path[-1]]
            parent[path[-1]] = [kept] if random.random() < 0.5 else {"a": kept}


def _swap(body: dict[str, Any], random: Random) -> None:
    paths = list(_paths(body))
    if len(paths) > 1:
        one, other = random.sample(paths, 2)
        if one[: len(other)] != other and other[: len(one)] != one:
            first, second = _parent(body, one), _parent(body, other)
            first[one[-1]], second[other[-1]] = second[other[-1]], first[one[-1]]


def _add(body: dict[str, Any], random: Random) -> None:
    body[random.choice(["", "n", "x", "stream", "tools", "stop", "logprobs", "a" * 2000])] = (
        copy.deepcopy(random.choice(_VALUES))
    )


def _flip_bits(raw: bytes, random: Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(raw: bytes, random: Random) -> bytes:
    return raw[: random.randrange(len(raw))]


def _insert(raw: bytes, random: Random) -> bytes:
    at = random.randrange(len(raw))
    return raw[:at] + random.choice(_BYTES) + raw[at:]


def _swap_number(raw: bytes, random: Random) -> bytes:
    digits = [index for index, byte in enumerate(raw) if 48 <= byte <= 57]
    if not digits:
        return raw
    at = random.choice(digits)
    return raw[:at] + random.choice(_RAW_NUMBERS) + raw[at + 1 :]


def _deepen(raw: bytes, random: Random) -> bytes:
    depth = random.choice([100, 1000, 50_000])
    opening, closing = random.choice([(b"[", b"]"), (b'{"a":', b"}")])
    if random.random() < 0.5:
        return opening * depth
    at = raw.find(b":") + 1
    return raw[:at] + opening * depth + b"1" + closing * depth + b"," + raw[at:]


def _repeat_key(raw: bytes, random: Random) -> bytes:
    return raw[:1] + b'"model":1,' * random.choice([1, 1000]) + raw[1:]


_ON_OBJECTS: list[Callable[[dict[str, Any], Random], None]] = [
    _replace,
    _remove,
    _nest,
    _swap,
    _add,
]
_ON_BYTES: list[Callable[[bytes, Random], bytes]] = [
    *[lambda raw, _random: raw] * 3,
    _flip_bits,
    _cut,
    _insert,
    _swap_number,
    _deepen,
    _repeat_key,
]
