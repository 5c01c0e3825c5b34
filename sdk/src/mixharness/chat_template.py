"""The chat template that a model folder ships, as text. Rendering it is the proxy's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mixharness.errors import EngineError

_PREFERRED = ("tool_use", "default")
"""Of several templates the one for tools, as agents need it."""


def read_chat_template(folder: Path) -> tuple[str, dict[str, str]]:
    """Return a model folder's chat template and the special tokens it may name.

    `chat_template.jinja` wins over `tokenizer_config.json`. The text is empty when there is none.

    Raises:
        EngineError: `tokenizer_config.json` is no JSON object.
    """
    config = _config(folder / "tokenizer_config.json")
    tokens = {
        key: token if isinstance(token, str) else token["content"]
        for key, token in config.items()
        if key.endswith("_token") and (isinstance(token, str) or _is_token(token))
    }
    file = folder / "chat_template.jinja"
    text = file.read_text("utf-8") if file.is_file() else _text(config.get("chat_template"))
    return text, tokens


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as exc:
        raise EngineError(f"{path} is no JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise EngineError(f"{path} must hold a JSON object")
    return config


def _is_token(token: Any) -> bool:
    return isinstance(token, dict) and isinstance(token.get("content"), str)


def _text(template: Any) -> str:
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return next((named[name] for name in _PREFERRED if name in named), "")
    return template if isinstance(template, str) else ""
