"""Reading JSON bodies field by field, with errors that name the path. No dialect lives here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mixharness.proxy.dialects import BadRequest


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        BadRequest: it is something else.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{where}: an object is wanted, not {_kind(value)}")
    return value


def mappings(
    body: Mapping[str, Any], key: str, where: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, object) for each item of a list that may be missing or null.

    Raises:
        BadRequest: the list or an item is something else.
    """
    path = f"{where}.{key}" if where else key
    items = body.get(key)
    if items is None:
        return
    if not isinstance(items, list):
        raise BadRequest(f"{path}: a list is wanted, not {_kind(items)}")
    for index, item in enumerate(items):
        yield f"{path}[{index}]", mapping(item, f"{path}[{index}]")


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


def text(content: Any, where: str) -> str:
    """Return text that comes as a string, as a list of text parts, or not at all.

    Raises:
        BadRequest: a part is no text; this policy reads nothing else.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where}: a string or a list of parts is wanted, not {_kind(content)}")
    return "\n\n".join(text_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def text_part(part: Any, where: str) -> str:
    """Return the text of one part.

    Raises:
        BadRequest: it is no text; this policy reads nothing else.
    """
    block = mapping(part, where)
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise BadRequest(f"{where}: the policy reads text only, not {block.get('type')!r}")
    return str(block["text"])


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", type(None): "null"}.get(type(value), repr(value))
