"""The real program, in every situation, does what is written down for its version."""

import pytest

import mixharness_pi
from mixharness.certify import certify
from mixharness.plugins import load_plugins

pytestmark = [pytest.mark.anyio, pytest.mark.pi]

KEEP_ALIVE_S = 5.0


@pytest.mark.usefixtures("program")
async def test_it_is_certified() -> None:
    registry = load_plugins(mixharness_pi, installed=False)
    found = await certify("pi", registry, long_s=KEEP_ALIVE_S + 1)
    assert found.ok, [report for report in found.situations if not report.ok]
    assert found.version == "1.6.0"
    reports = {report.name: report for report in found.situations}
    assert [name for name, report in reports.items() if report.exit.startswith("not app")] == [
        "no_streaming",
        "compaction",
        "subagent",
        "changed_file",
    ]
    assert {fork for report in found.situations for fork in report.forks} == set()
    assert 0.9 * KEEP_ALIVE_S < reports["long_sampling"].max_silence_s < 2 * KEEP_ALIVE_S
