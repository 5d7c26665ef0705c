"""Every value that the typed requests of an official client can carry, one change at a time."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict


class Variant(NamedTuple):
    """A value. path: of the field that makes it differ from the plainest, without indices."""

    path: tuple[str, ...]
    value: Any


class SchemaWalk:
    """Walks types made of TypedDicts.

    samples: values of fields whose type tells too little. always: fields that the plainest
    objects have, required or not.
    """

    def __init__(self, samples: Mapping[str, Any], always: Collection[str] = ()) -> None:
        self._samples = samples
        self._always = always

    def variants(self, kind: Any, name: str = "") -> Iterator[Variant]:
        """Each value of a type: the plainest first, then those with one part changed."""
        origin, args = get_origin(kind), get_args(kind)
        if name in self._samples:
            yield Variant((), self._samples[name])
        elif is_typeddict(kind):
            yield from self._objects(kind)
        elif origin in {Required, NotRequired}:
            yield from self.variants(args[0], name)
        elif origin in {Union, types.UnionType}:
            for each in args:
                yield from self.variants(each, name)
        elif origin is Literal:
            yield from (Variant((), value) for value in args)
        elif origin is dict or origin is collections.abc.Mapping:
            yield Variant((), {"1": self.plainest(args[1])})
        elif args:
            yield from (Variant(path, [value]) for path, value in self.variants(args[0]))
        else:
            # Files and a client's own objects have none: they are other ways to give the same.
            yield from (Variant((), value) for value in _SIMPLE.get(kind, []))

    def plainest(self, kind: Any, name: str = "") -> Any:
        return next(self.variants(kind, name)).value

    def fields(self, kind: Any) -> dict[str, Any]:
        return get_type_hints(kind, include_extras=True)

    def _objects(self, kind: Any) -> Iterator[Variant]:
        fields = self.fields(kind)
        # __required_keys__ does not see through annotations that are strings.
        plain = {
            key: self.plainest(field, key)
            for key, field in fields.items()
            if get_origin(field) is Required or key in self._always
        }
        yield Variant((), plain)
        for key, field in fields.items():
            for path, value in self.variants(field, key):
                yield Variant((key, *path), {**plain, key: value})


_SIMPLE: dict[Any, list[Any]] = {
    str: ["x"],
    int: [1],
    float: [0.5],
    bool: [True, False],
    object: ["x"],
    type(None): [None],
    Any: ["x"],
}
