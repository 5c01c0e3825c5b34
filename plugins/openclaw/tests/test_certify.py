"""The real program, in every situation, does what is written down for its version."""

import pytest

import mixharness_openclaw
from mixharness.certify import certify
from mixharness.plugins import load_plugins

pytestmark = [pytest.mark.anyio, pytest.mark.openclaw, pytest.mark.slow]

KEEP_ALIVE_S = 5.0


@pytest.mark.usefixtures("program")
async def test_it_is_certified() -> None:
    registry = load_plugins(mixharness_openclaw, installed=False)
    found = await certify("openclaw", registry, long_s=KEEP_ALIVE_S + 1)
    assert found.ok, [report for report in found.situations if not report.ok]
    assert found.version == "2026.9.6"
    reports = {report.name: report for report in found.situations}
    assert [name for name, report in reports.items() if report.exit.startswith("not app")] == [
        "no_streaming",
        "subagent",
        "changed_file",
    ]
    assert 0.9 * KEEP_ALIVE_S < reports["long_sampling"].max_silence_s < 2 * KEEP_ALIVE_S
    assert reports["compaction"].roles["compaction"] == 1
