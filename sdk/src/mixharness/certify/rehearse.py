"""THE path of `mixharness certify`: every situation through proxy, sandbox and program, judged.

Rollouts are run by the same rooms as in training. What is unlike them stands in policy.py (who
speaks) and front.py (what goes wrong on the way).
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mixharness.assemble import build
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig
from mixharness.certify.expectations import Expected, load_expectations
from mixharness.certify.front import Front, Traffic
from mixharness.certify.policy import Part, ScriptedPolicy
from mixharness.certify.situations import Situation, load_situations
from mixharness.certify.verdict import (
    Certificate,
    Played,
    SituationReport,
    judge,
    not_applicable,
)
from mixharness.chat_template import read_chat_template
from mixharness.component import ComponentConfig
from mixharness.config import PartSpec
from mixharness.errors import ConfigError
from mixharness.harness import Harness, Program
from mixharness.logs import logs_to
from mixharness.plugins import Registry
from mixharness.proxy.admission import Pausable, ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.proxy.session import ProxySession
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.scheduler import collect
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.sandbox import Workspace
from mixharness.types import Limits, Rollout, Score, Task
from mixharness.verifier import Verifier

LONG_S = 130.0
"""Longer than the patience of common clients and load balancers, in seconds."""
CONCURRENCY = 4
CONTEXT = 65536
"""Tokens: room for thirty turns of a program's own prompt, and small enough to overflow."""
_VERIFIER = "unscored"
_SETTINGS = ProxySettings(max_tokens=4096)
_LIMITS = Limits(memory_mb=8192)  # Node asks for more private memory than it ever uses

Done = Callable[[int, int], None]


class _Unscored(Verifier[ComponentConfig]):
    name = _VERIFIER

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Say nothing: certifying looks at calls, not at work."""
        return Score(value=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """One situation, ready to be played."""

    situation: Situation
    expected: Expected
    request: RolloutRequest
    part: Part
    traffic: Traffic


class _FrontedProxy(Proxy):
    """The proxy of every run; programs are told the front's address instead of its own."""

    def __init__(
        self, policy: ScriptedPolicy, front: Front, traffic: Mapping[str, Traffic]
    ) -> None:
        super().__init__(policy, _SETTINGS)
        self._front, self._traffic = front, traffic

    def open_session(
        self,
        *,
        rollout_id: str,
        harness: Harness[Any],
        limits: Limits,
        folder: Path,
        clock: Pausable | None = None,
    ) -> ProxySession:
        """Open a session behind the front."""
        session = super().open_session(
            rollout_id=rollout_id, harness=harness, limits=limits, folder=folder, clock=clock
        )
        session.base_url = self._front.lead(session.base_url, self._traffic[rollout_id])
        return session


async def certify(
    name: str,
    registry: Registry,
    *,
    model: Path | None = None,
    long_s: float = LONG_S,
    done: Done | None = None,
) -> Certificate:
    """Put a harness into every situation and compare with what its plugin expects.

    Args:
        name: the harness.
        registry: where it comes from.
        model: folder whose tokenizer and chat template are used; a tokenizer of bytes without.
        long_s: how long the long sampling takes, in seconds.
        done: called with (finished, all).

    Raises:
        ConfigError: the plugin's expectations or the model folder are missing or wrong.
        PluginError: there is no such harness, or it is broken.
        ProgramMissingError: its program is not installed.
        TemplateError: no renderer can extend the model's chat template.
    """
    harness = _build(name, registry, {})
    program = harness.find(cache_dir())
    expectations = load_expectations(harness, program)
    scenes = [
        _scene(situation, expected, program, _build(name, registry, expected.config))
        for situation in load_situations()
        for expected in (expectations[situation.name],)
        if not expected.not_applicable
    ]
    rollouts = await _play(scenes, model, long_s, done)
    return Certificate(
        harness=name,
        version=program.version if program else _plugin_version(name, registry),
        situations=_reports(expectations, scenes, rollouts),
    )


def _build(name: str, registry: Registry, config: Mapping[str, Any]) -> Harness[Any]:
    cls = registry.get("harness", name)
    try:
        part_config = cls.config_type.model_validate(config)
    except ValidationError as exc:
        problems = [(".".join(map(str, e["loc"])), e["msg"]) for e in exc.errors()]
        raise ConfigError(f"the config of {name} to certify", problems) from exc
    spec = PartSpec(kind="harness", name=name, label=name, part_config=part_config)
    harness: Harness[Any] = build(spec, registry)
    return harness


def _scene(
    situation: Situation, expected: Expected, program: Program | None, harness: Harness[Any]
) -> _Scene:
    task = Task(
        id=situation.name, prompt=situation.prompt, verifier=_VERIFIER, files=situation.files
    )
    slot = HarnessSlot(label=harness.name, harness=harness, program=program, limits=_LIMITS)
    return _Scene(
        situation=situation,
        expected=expected,
        request=RolloutRequest(task=task, slot=slot, sample=0, stage="certify"),
        part=Part(situation),
        traffic=Traffic(fault=situation.fault),
    )


async def _play(
    scenes: Sequence[_Scene], model: Path | None, long_s: float, done: Done | None
) -> dict[str, Rollout]:
    """Run all scenes, the longest first; return the rollouts by situation."""
    finished = 0

    def on_done(_: Rollout) -> None:
        nonlocal finished
        finished += 1
        if done is not None:
            done(finished, len(scenes))

    slow = [scene for scene in scenes if any(turn.slow for turn in scene.situation.turns)]
    order = [*slow, *(scene for scene in scenes if scene not in slow)]
    requests = [scene.request for scene in order]
    async with _stage(scenes, model, long_s) as runner:
        rollouts = await collect(runner, requests, CONCURRENCY, on_done)
    return {rollout.key.task_id: rollout for rollout in rollouts}


@asynccontextmanager
async def _stage(
    scenes: Sequence[_Scene], model: Path | None, long_s: float
) -> AsyncIterator[Runner]:
    """Open engine, proxy, front and a folder for the records; all of it is gone afterwards."""
    config = _engine_config(model)
    parts = {scene.request.id: scene.part for scene in scenes}
    traffic = {scene.request.id: scene.traffic for scene in scenes}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mixharness-")))
        stack.enter_context(logs_to(folder))  # failures are meant here, and reported as exits
        policy = ScriptedPolicy(config, parts, long_s)
        await policy.start()
        stack.push_async_callback(policy.stop)
        front = Front()
        await front.start()
        stack.push_async_callback(front.stop)
        proxy = _FrontedProxy(policy, front, traffic)
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        yield Runner(
            proxy=proxy,
            sandbox=LocalSandboxBackend(LocalSandboxConfig()),
            verifiers={_VERIFIER: _Unscored(ComponentConfig())},
            store=RunStore(folder),
            settings=RunnerSettings(max_infra_retries=0),
        )


def _engine_config(model: Path | None) -> ScriptedConfig:
    """Return the tokenizer and template of a model folder, or those of bytes."""
    if model is None:
        return ScriptedConfig(turns=("",), context=CONTEXT)
    if not (model / "tokenizer.json").is_file():
        raise ConfigError("--model", [(str(model), "no tokenizer.json in this folder")])
    renderer = "template" if read_chat_template(model)[0] else "qwen3"
    return ScriptedConfig(turns=("",), tokenizer=str(model), renderer=renderer, context=CONTEXT)


def _reports(
    expectations: Mapping[str, Expected], scenes: Sequence[_Scene], rollouts: Mapping[str, Rollout]
) -> tuple[SituationReport, ...]:
    played = {
        scene.situation.name: Played(
            situation=scene.situation,
            expected=scene.expected,
            rollout=rollouts[scene.situation.name],
            traffic=scene.traffic,
            seen=scene.part.seen,
            silence_limit_s=2 * _SETTINGS.keep_alive_s,
        )
        for scene in scenes
    }
    return tuple(
        judge(played[situation.name])
        if situation.name in played
        else not_applicable(situation, expectations[situation.name].not_applicable)
        for situation in load_situations()
    )


def _plugin_version(name: str, registry: Registry) -> str:
    rows = (r for r in registry.parts() if (r.kind, r.name) == ("harness", name))
    return next(rows).version
