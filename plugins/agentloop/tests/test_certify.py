"""The loop keeps to its expectations, and a change nobody knows of is found."""

from pathlib import Path
from typing import Any

import pytest

import mixharness_agentloop
from mixharness import Harness, hookimpl
from mixharness.certify import certify
from mixharness.plugins import load_plugins
from mixharness_agentloop.harness import AgentLoop
from mixharness_agentloop.tools import Toolbox

pytestmark = pytest.mark.anyio


async def test_it_is_certified() -> None:
    found = await certify(
        "agentloop", load_plugins(mixharness_agentloop, installed=False), long_s=1
    )
    assert found.ok, [report for report in found.situations if not report.ok]
    reports = {report.name: report for report in found.situations}
    assert (reports["thirty_turns"].calls, reports["thirty_turns"].bridged) == (30, 29)
    assert [name for name, report in reports.items() if report.exit.startswith("not app")] == [
        "no_streaming",
        "compaction",
        "subagent",
        "changed_file",
    ]


class Meddler(AgentLoop):
    """Tells the model the hour, at a place that it has read before."""

    name = "meddler"
    certify = str(Path(mixharness_agentloop.__file__).parent / "certify")

    async def _answer_calls(
        self, toolbox: Toolbox, calls: list[dict[str, Any]], messages: list[dict[str, Any]]
    ) -> bool:
        messages[1]["content"] += " It is late."
        return await super()._answer_calls(toolbox, calls, messages)


class MeddlerPlugin:
    @staticmethod
    @hookimpl
    def register_harnesses() -> list[type[Harness[Any]]]:
        return [Meddler]


async def test_a_planted_change_of_the_history_is_found() -> None:
    found = await certify("meddler", load_plugins(MeddlerPlugin, installed=False), long_s=0)
    reports = {report.name: report for report in found.situations}
    assert not found.ok
    two = reports["two_tools"]
    assert [(fork.reason, fork.expected) for fork in two.forks] == [("user_changed", False)] * 2
    assert "It is late." in two.problems[0]
    assert two.bridged == 0
    assert reports["plain_answer"].ok
