"""Keywords that apply schemas to a value or to its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from astrai_cli.serving.tool_schemas.assertions import ASSERTIONS, compile_pattern
from astrai_cli.serving.tool_schemas.budget import Budget
from astrai_cli.serving.tool_schemas.dialects import Dialect, Schema
from astrai_cli.serving.tool_schemas.evaluation import Check, Evaluated, Node

Keywords = Mapping[str, Any]


class Context(Protocol):
    """What compiling a keyword needs beside its value."""

    @property
    def dialect(self) -> Dialect: ...

    def node(self, schema: Schema) -> Node: ...


def _properties(keywords: Keywords, context: Context) -> Iterator[Check]:
    """`properties`, `patternProperties` and `additionalProperties`, in one walk of the object."""
    if not keywords.keys() & {"properties", "patternProperties", "additionalProperties"}:
        return
    named = {name: context.node(each) for name, each in keywords.get("properties", {}).items()}
    patterns = [
        (compile_pattern(pattern), context.node(each))
        for pattern, each in keywords.get("patternProperties", {}).items()
    ]
    others = (
        context.node(keywords["additionalProperties"])
        if "additionalProperties" in keywords
        else None
    )

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, dict):
            return True
        for name, each in value.items():
            budget.spend()
            nodes = [named[name]] if name in named else []
            nodes += [node for pattern, node in patterns if budget.search(pattern, name)]
            if not nodes and others is not None:
                nodes = [others]
            if nodes and seen is not None:
                seen.names.add(name)
            if not all(node.accepts(each, budget) for node in nodes):
                return False
        return True

    yield check


def _property_names(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "propertyNames" not in keywords:
        return
    node = context.node(keywords["propertyNames"])
    yield (
        lambda value, budget, seen: (
            not isinstance(value, dict) or all(node.accepts(name, budget) for name in value)
        )
    )


def _items(keywords: Keywords, context: Context) -> Iterator[Check]:
    """The items' schemas: of the first ones, and of all that follow."""
    first, following = keywords.get("prefixItems", []), keywords.get("items")
    if context.dialect.tuple_items:
        first = following if isinstance(following, list) else []
        if isinstance(following, list):
            following = keywords.get("additionalItems")
    if not first and following is None:
        return
    nodes = [context.node(each) for each in first]
    rest = None if following is None else context.node(following)

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, list):
            return True
        if seen is not None:
            n_evaluated = len(value) if rest is not None else len(nodes)
            seen.prefix = max(seen.prefix, n_evaluated)
        if not all(node.accepts(each, budget) for node, each in zip(nodes, value, strict=False)):
            return False
        return rest is None or all(rest.accepts(each, budget) for each in value[len(nodes) :])

    yield check


def _contains(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "contains" not in keywords:
        return
    node = context.node(keywords["contains"])
    counts = context.dialect.vocabularies
    least = keywords.get("minContains", 1) if counts else 1
    most = keywords.get("maxContains", float("inf")) if counts else float("inf")
    evaluates = context.dialect.contains_evaluates

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, list):
            return True
        found = {index for index, each in enumerate(value) if node.accepts(each, budget)}
        if evaluates and seen is not None:
            seen.items |= found
        return bool(least <= len(found) <= most)

    yield check


def _all_of(keywords: Keywords, context: Context) -> Iterator[Check]:
    yield from (context.node(each).accepts for each in keywords.get("allOf", []))


def _n_accepting(
    nodes: list[Node], most: int, value: Any, budget: Budget, seen: Evaluated | None
) -> int:
    """How many accept the value; counts no further than `most` when nothing else depends on it."""
    count = 0
    for node in nodes:
        branch = None if seen is None else Evaluated()
        if node.accepts(value, budget, branch):
            count += 1
            if seen is not None and branch is not None:
                seen.merge(branch, budget)
            elif count == most:
                break
    return count


def _any_of(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "anyOf" in keywords:
        nodes = [context.node(each) for each in keywords["anyOf"]]
        yield lambda value, budget, seen: _n_accepting(nodes, 1, value, budget, seen) > 0


def _one_of(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "oneOf" in keywords:
        nodes = [context.node(each) for each in keywords["oneOf"]]
        yield lambda value, budget, seen: _n_accepting(nodes, 2, value, budget, seen) == 1


def _not(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "not" in keywords:
        node = context.node(keywords["not"])
        yield lambda value, budget, seen: not node.accepts(value, budget)


def _conditional(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "if" not in keywords:
        return
    condition, then, otherwise = (
        context.node(keywords.get(keyword, True)) for keyword in ("if", "then", "else")
    )

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        branch = None if seen is None else Evaluated()
        if not condition.accepts(value, budget, branch):
            return otherwise.accepts(value, budget, seen)
        if seen is not None and branch is not None:
            seen.merge(branch, budget)
        return then.accepts(value, budget, seen)

    yield check


def _dependents(keywords: Keywords, context: Context) -> Iterator[Check]:
    """`dependentSchemas`, and Draft 7's `dependencies`, whose members may be lists of names."""
    keyword = "dependentSchemas" if context.dialect.vocabularies else "dependencies"
    members = keywords.get(keyword, {}).items()
    schemas = {name: context.node(each) for name, each in members if not isinstance(each, list)}
    names = {name: each for name, each in members if isinstance(each, list)}
    if names:
        yield ASSERTIONS["dependentRequired"](names)
    if schemas:
        yield (
            lambda value, budget, seen: (
                not isinstance(value, dict)
                or all(
                    node.accepts(value, budget, seen)
                    for name, node in schemas.items()
                    if name in value
                )
            )
        )


APPLICATORS: tuple[Callable[[Keywords, Context], Iterator[Check]], ...] = (
    _properties,
    _property_names,
    _items,
    _contains,
    _all_of,
    _any_of,
    _one_of,
    _not,
    _conditional,
    _dependents,
)


def _unevaluated_properties(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "unevaluatedProperties" not in keywords:
        return
    node = context.node(keywords["unevaluatedProperties"])

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, dict) or seen is None:
            return True
        left = value.keys() - seen.names
        seen.names |= left
        return all(node.accepts(value[name], budget) for name in left)

    yield check


def _unevaluated_items(keywords: Keywords, context: Context) -> Iterator[Check]:
    if "unevaluatedItems" not in keywords:
        return
    node = context.node(keywords["unevaluatedItems"])

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, list) or seen is None:
            return True
        left = [index for index in range(seen.prefix, len(value)) if index not in seen.items]
        seen.prefix = len(value)
        return all(node.accepts(value[index], budget) for index in left)

    yield check


LAST: tuple[Callable[[Keywords, Context], Iterator[Check]], ...] = (
    _unevaluated_properties,
    _unevaluated_items,
)
