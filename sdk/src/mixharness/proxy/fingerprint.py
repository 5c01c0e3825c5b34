"""When two messages count as the same: canonical form and chained fingerprints (1.3, 1.4).

Only match rules act here; nothing in this file changes what the policy reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import xxhash

from mixharness.proxy.chat import ChatMessage, Tool
from mixharness.proxy.rules import MatchRule

_EXACT = 2**53
"""Whole numbers up to here survive a program that counts in doubles."""


class Fingerprinter:
    """Fingerprints of one rollout's messages; each distinct message is worked out once.

    Built in: ids and signatures do not count; tool arguments are compared as JSON values, without
    key order, without arguments that equal the schema's default, and with numbers as JavaScript
    would write them. Text is compared exactly, because programs resend it exactly.
    """

    def __init__(self, rules: Sequence[MatchRule] = ()) -> None:
        self._rules = tuple(rules)
        self._seen: dict[tuple[bytes, ChatMessage], bytes] = {}
        self._root: tuple[Sequence[Tool], bytes] = ((), _root(()))

    def root(self, tools: Sequence[Tool]) -> bytes:
        """Return the fingerprint of a tool list, where every chain begins."""
        if tools is not self._root[0]:  # one request's are asked for more than once
            self._root = (tools, _root(tools))
        return self._root[1]

    def messages(
        self, root: bytes, messages: Sequence[ChatMessage], tools: Sequence[Tool]
    ) -> list[bytes]:
        """Return one fingerprint per message; position does not count.

        Args:
            root: the fingerprint of `tools`.
            messages: of a request, or shown.
            tools: their schemas' defaults count as given.
        """
        defaults: Mapping[str, Any] | None = None
        prints: list[bytes] = []
        for message in messages:
            known = self._seen.get((root, message))
            if known is None:
                defaults = tool_defaults(tools) if defaults is None else defaults
                known = xxhash.xxh3_128_digest(self.canonical(message, defaults))
                self._seen[root, message] = known
            prints.append(known)
        return prints

    def canonical(self, message: ChatMessage, defaults: Mapping[str, Any]) -> bytes:
        """Return the form of a message that is compared.

        Args:
            message: as a dialect read it, or as the proxy showed it.
            defaults: tool name to {argument: default}, from the tools' schemas.
        """
        for rule in self._rules:
            message = rule.apply(message)
        said = [message.role, message.content, message.reasoning]
        try:
            calls = [
                [call.name, _arguments(call.arguments, defaults.get(call.name, {}))]
                for call in message.tool_calls
            ]
            return _dumps([*said, calls])
        except (orjson.JSONEncodeError, RecursionError):  # nested beyond comparing by value
            return _dumps([*said, [[call.name, call.arguments] for call in message.tool_calls]])


def _root(tools: Sequence[Tool]) -> bytes:
    listed = [[tool.name, tool.description, dict(tool.parameters)] for tool in tools]
    return xxhash.xxh3_128_digest(_dumps(listed))


def chain_of(root: bytes, prints: Sequence[bytes]) -> list[bytes]:
    """Return chained fingerprints: item i covers the root and the first i messages."""
    links = [root]
    for link in prints:
        links.append(xxhash.xxh3_128_digest(links[-1] + link))
    return links


def first_difference(known: str, received: str, width: int = 40) -> str:
    """Return the first span in which two texts differ, as `known -> received`."""
    shorter = min(len(known), len(received))
    at = next((i for i in range(shorter) if known[i] != received[i]), shorter)
    start = max(0, at - 8)
    return f"{known[start : at + width]!r} -> {received[start : at + width]!r}"


def tool_defaults(tools: Sequence[Tool]) -> dict[str, dict[str, Any]]:
    """Return tool name to {argument: default} as the tools' schemas state them."""
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        properties = tool.parameters.get("properties")
        fields = properties.items() if isinstance(properties, dict) else ()
        found[tool.name] = {
            name: _number(schema["default"])
            for name, schema in fields
            if isinstance(schema, dict) and "default" in schema
        }
    return found


def _arguments(text: str, defaults: Mapping[str, Any]) -> Any:
    """Return arguments as a comparable value; text that is no JSON stands for itself."""
    try:
        value = _number(orjson.loads(text or "{}"))
    except orjson.JSONDecodeError:
        return text
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if k not in defaults or defaults[k] != v}


def _number(value: Any) -> Any:
    """Return JSON with its numbers as a program that counts in doubles writes them again."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return float(value)
    return value


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
