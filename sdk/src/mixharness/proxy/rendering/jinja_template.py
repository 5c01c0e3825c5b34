"""A Hugging Face chat template as text to text, the way transformers runs it. No token is here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mixharness.errors import TemplateError


class JinjaTemplate:
    """A compiled template.

    The day that `strftime_now` tells is the day this was made: a prompt must not change while a
    conversation goes on.

    Raises:
        TemplateError: at construction, when the text is no valid template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = datetime.now().strftime
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as exc:
            raise TemplateError(f"the chat template's line {exc.lineno}: {exc.message}") from exc
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, *, prompt: bool
    ) -> str:
        """Return the conversation's text; with `prompt` the generation prompt ends it.

        Raises:
            Exception: whatever the template raises on messages that it does not want.
        """
        return self._template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=prompt,
            **self._special_tokens,
        )


class _Generation(Extension):
    """`{% generation %}` marks what a policy writes; it renders as what it encloses."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes what is special in HTML; templates were written for this one."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
