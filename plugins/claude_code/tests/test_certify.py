"""The real program, in every situation, does what is written down for its version."""

import pytest

import mixharness_claude_code
from mixharness.certify import certify
from mixharness.plugins import load_plugins

pytestmark = [pytest.mark.anyio, pytest.mark.claude_code]

KEEP_ALIVE_S = 5.0


@pytest.mark.usefixtures("program")
async def test_it_is_certified() -> None:
    registry = load_plugins(mixharness_claude_code, installed=False)
    found = await certify("claude_code", registry, long_s=KEEP_ALIVE_S + 1)
    assert found.ok, [report for report in found.situations if not report.ok]
    assert found.version == "2.1.328"
    reports = {report.name: report for report in found.situations}
    assert not [name for name, report in reports.items() if report.exit.startswith("not app")]
    assert 0.9 * KEEP_ALIVE_S < reports["long_sampling"].max_silence_s < 2 * KEEP_ALIVE_S
    assert reports["no_streaming"].retries == reports["rate_limit"].retries == 1
    assert reports["subagent"].roles == {"main": 2, "subagent": 2}
    assert reports["compaction"].roles["compaction"] == 1
