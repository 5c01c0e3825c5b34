"""The program's own configuration file, one per rollout. Running it is harness.py's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mixharness_openclaw.gateway import gateway_keys

APPEND_ONLY_TOOLS = ("read", "write", "edit", "exec")
"""With any of its other tools the program moves a message of its own to the end of every call."""
OWN_COMMAND_S = 1800.0
"""After which the program ends a command, if it is told nothing else."""
_ROOTED = ("anthropic-messages",)
"""APIs whose client adds `/v1` to the address by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What differs between rollouts and run files."""

    api: str
    base_url: str
    """Without `/v1`."""
    secret: str
    model: str
    workspace: str
    tools: Sequence[str]
    """Empty for all that the program has."""
    compact: bool
    context_window: int
    max_output_tokens: int
    wall_s: float
    command_s: float
    """After which a command of a tool ends, unless the call says otherwise."""
    mcp_servers: Mapping[str, str]
    """Name to address."""
    gateway_port: int = 0
    """Of the Gateway that runs beside the agent; 0 for none."""

    def text(self) -> bytes:
        """Return the file."""
        off = {"enabled": False}
        served = gateway_keys(self.gateway_port, self.secret) if self.gateway_port else {}
        return orjson.dumps(
            served
            | {
                "models": self._models(),
                "agents": {"defaults": self._agent()},
                "tools": self._tools(),
                "mcp": {"servers": {name: _server(url) for name, url in self.mcp_servers.items()}},
                "memory": {"search": off},
                "plugins": off,
                "cron": off,
                "update": {"checkOnStart": False},
                "telemetry": off,
                "diagnostics": off,
            }
        )

    def _models(self) -> dict[str, Any]:
        model = {
            "id": self.model,
            "name": self.model,
            "reasoning": True,  # else it drops the reasoning of earlier turns
            "input": ["text"],
            "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
            "contextWindow": self.context_window,
            "maxTokens": self.max_output_tokens,
            "compat": {"sendSessionAffinityHeaders": True},
        }
        provider = {
            "baseUrl": self.base_url if self.api in _ROOTED else f"{self.base_url}/v1",
            "apiKey": self.secret,
            "api": self.api,
            "timeoutSeconds": int(self.wall_s),  # a held request is no failed one
            "models": [model],
        }
        off = {"enabled": False}
        return {"mode": "replace", "catalogRefresh": off, "providers": {"proxy": provider}}

    def _agent(self) -> dict[str, Any]:
        return {
            "workspace": self.workspace,
            "model": {"primary": f"proxy/{self.model}", "fallbacks": []},
            "utilityModel": "",
            "contextInjection": "never",
            "skipBootstrap": True,
            "skills": [],
            "heartbeat": {"every": "0m"},
            "compaction": {
                "enabled": self.compact,
                "mode": "default",
                "midTurnPrecheck": {"enabled": self.compact},
                "memoryFlush": {"enabled": False},
            },
            "userTimezone": "UTC",
            "thinkingDefault": "medium",
        }

    def _tools(self) -> dict[str, Any]:
        off = {"enabled": False}
        tools: dict[str, Any] = {
            "codeMode": False,
            "exec": {"mode": "full", "timeoutSeconds": max(1, int(self.command_s))},
            "fs": {"workspaceOnly": True},
            "web": {"search": off, "fetch": off},
        }
        if not self.tools:
            return tools
        servers = ["bundle-mcp"] if self.mcp_servers else []
        implied = ["apply_patch"] if "apply_patch" not in self.tools else []
        return tools | {
            "allow": [*self.tools, *servers],
            "deny": implied,  # by `write`
            "toolSearch": False,
            "swarm": False,
            "updatePlan": False,
        }


def _server(url: str) -> dict[str, str]:
    return {"url": url, "transport": "streamable-http"}
