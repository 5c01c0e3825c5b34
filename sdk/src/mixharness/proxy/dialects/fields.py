"""Reading JSON bodies field by field, with errors that name the path. No dialect lives here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import orjson

from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.seen import Seen

T = TypeVar("T")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        BadRequest: it is something else.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{where}: an object is wanted, not {_kind(value)}")
    return value


def opaque(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object that is passed on whole, such as a schema; null is an empty one.

    Raises:
        BadRequest: it is something else, or nested so deeply that it cannot be written again.
    """
    found = {} if value is None else mapping(value, where)
    try:
        orjson.dumps([[[[[[[[found]]]]]]]])  # as deep as it will ever be wrapped
    except orjson.JSONEncodeError as exc:
        raise BadRequest(f"{where}: {str(exc).lower()}") from exc
    return found


def mappings(
    body: Mapping[str, Any], key: str, where: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, object) for each item of a list that may be missing or null.

    Raises:
        BadRequest: the list or an item is something else.
    """
    path = _path(key, where)
    items = body.get(key)
    if items is None:
        return
    if not isinstance(items, list):
        raise BadRequest(f"{path}: a list is wanted, not {_kind(items)}")
    for index, item in enumerate(items):
        yield f"{path}[{index}]", mapping(item, f"{path}[{index}]")


def each_item(
    body: Mapping[str, Any],
    key: str,
    read: Callable[[dict[str, Any], str], T],
    seen: Seen | None = None,
) -> list[T]:
    """Return what the items of a list that must not be empty are read as.

    Args:
        body: the request's.
        key: where the list is.
        read: takes an item and its path.
        seen: what was read from earlier bodies; what it knows is not read again.

    Raises:
        BadRequest: it is empty, or the list or an item is something else.
    """
    items = body.get(key)
    if items is None or items == []:
        raise BadRequest(f"{key}: at least one is wanted")
    if not isinstance(items, list):
        raise BadRequest(f"{key}: a list is wanted, not {_kind(items)}")

    def read_one(index: int, item: Any) -> T:
        where = f"{key}[{index}]"
        return read(mapping(item, where), where)

    return (seen or Seen()).read(items, read_one)


def number(body: Mapping[str, Any], key: str) -> int | None:
    """Return a positive whole number, or None when it is missing or null.

    Raises:
        BadRequest: it is something else.
    """
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{key}: a positive whole number is wanted, not {value!r}")
    return value


def flag(body: Mapping[str, Any], key: str) -> bool:
    """Return true or false; false when it is missing or null.

    Raises:
        BadRequest: it is something else.
    """
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{key}: true or false is wanted, not {_kind(value)}")
    return value is True


def string(body: Mapping[str, Any], key: str, where: str = "") -> str:
    """Return a string, empty when it is missing or null.

    Raises:
        BadRequest: it is something else.
    """
    value = body.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"{_path(key, where)}: a string is wanted, not {_kind(value)}")
    return value


def required(body: Mapping[str, Any], key: str, where: str) -> str:
    """Return a string that has to be there, though it may be empty.

    Raises:
        BadRequest: it is missing or something else.
    """
    if body.get(key) is None:
        raise BadRequest(f"{_path(key, where)}: a string is wanted")
    return string(body, key, where)


def tool_name(tool: Mapping[str, Any], where: str) -> str:
    """Return the name of a declared tool.

    Raises:
        BadRequest: there is none.
    """
    name = required(tool, "name", where)
    if not name:
        raise BadRequest(f"{where}.name: a tool needs a name")
    return name


def text(content: Any, where: str, kinds: tuple[str, ...] = ("text",)) -> str:
    """Return text that comes as a string, as a list of text parts, or not at all.

    Args:
        content: the field's value.
        where: its path.
        kinds: values of `type` that mark a text part.

    Raises:
        BadRequest: a part is no text; this policy reads nothing else.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where}: a string or a list of parts is wanted, not {_kind(content)}")
    return "\n\n".join(text_part(part, f"{where}[{i}]", kinds) for i, part in enumerate(content))


def text_part(part: Any, where: str, kinds: tuple[str, ...] = ("text",)) -> str:
    """Return the text of one part.

    Raises:
        BadRequest: it is no text; this policy reads nothing else.
    """
    block = mapping(part, where)
    if block.get("type") not in kinds:
        raise BadRequest(f"{where}: the policy reads text only, not {quoted(block.get('type'))}")
    return required(block, "text", where)


def refuse(body: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Refuse fields that would change the answer and cannot be honoured.

    Raises:
        BadRequest: a field of `reasons` is set.
    """
    for key, reason in reasons.items():
        if body.get(key):
            raise BadRequest(f"{key}: {reason}")


def bearer(headers: Mapping[str, str]) -> str:
    """Return the bearer token, or an empty string."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def quoted(value: Any) -> str:
    """Return a short form of a value for an error message."""
    return repr(value[:60]) if isinstance(value, str) else _kind(value)


def _path(key: str, where: str) -> str:
    return f"{where}.{key}" if where else key


def _kind(value: Any) -> str:
    known = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return known.get(type(value)) or repr(value)
