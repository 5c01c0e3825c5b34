"""The program's own configuration file, one per rollout. Running it is harness.py's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

KEY_VARIABLE = "MODEL_KEY"
OWN_WAIT_S = 300.0
"""The longest that the program lets a call of a tool wait for a running command."""

_TOP = """\
model_provider = "proxy"
approval_policy = "never"
check_for_update_on_startup = false
web_search = "disabled"
project_doc_max_bytes = 0
include_permissions_instructions = false
include_environment_context = false
include_apps_instructions = false
model_reasoning_summary = "none"
"""
_TABLES = f"""\
[analytics]
enabled = false

[feedback]
enabled = false

[history]
persistence = "none"

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[shell_environment_policy]
inherit = "core"
exclude = ["{KEY_VARIABLE}", "CODEX_*"]

# A dead proxy would otherwise be asked for ever, and plugins be fetched from the internet.
[features]
unbounded_connection_retries = false
plugins = false
remote_plugin = false
apps = false
goals = false
hooks = false
skill_search = false
tool_suggest = false
view_image = false
image_generation = false
guardian_approval = false
shell_snapshot = false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What differs between rollouts and run files."""

    model: str
    base_url: str
    """Ending in `/v1`."""
    instructions: str
    """Path of the file that replaces the program's own prompt; empty keeps that one."""
    sandbox_mode: str
    context_window: int
    agents: bool
    max_retries: int
    idle_timeout_s: float
    wait_s: float
    """The longest that a call of a tool waits for a running command."""
    mcp_servers: Mapping[str, str]
    """Name to address."""

    def text(self) -> str:
        """Return the file."""
        top: dict[str, object] = {
            "model": self.model,
            "model_context_window": self.context_window,
            "sandbox_mode": self.sandbox_mode,
            "background_terminal_max_timeout": int(self.wait_s * 1000),
        }
        if self.instructions:
            top["model_instructions_file"] = self.instructions
        provider: dict[str, object] = {
            "name": "proxy",
            "base_url": self.base_url,
            "wire_api": "responses",
            "env_key": KEY_VARIABLE,
            "request_max_retries": self.max_retries,
            "stream_max_retries": self.max_retries,
            # Keep-alive comments do not count as events for the program.
            "stream_idle_timeout_ms": int(self.idle_timeout_s * 1000),
        }
        parts = [_lines(top) + _TOP, "[model_providers.proxy]\n" + _lines(provider)]
        parts += ["[agents]\n" + _lines({"enabled": self.agents}), _TABLES]
        for name, url in self.mcp_servers.items():
            server = {"url": url, "default_tools_approval_mode": "approve"}
            parts.append(f"[mcp_servers.{json.dumps(name)}]\n" + _lines(server))
        return "\n".join(parts)


def _lines(values: Mapping[str, object]) -> str:
    # JSON scalars are TOML scalars, as long as nothing beyond ASCII is escaped.
    return "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in values.items())
