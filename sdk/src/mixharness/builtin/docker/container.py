"""Starting, ending and removing one container. What is done in it is commands.py's.

All that programs can write is kept in memory, in three file systems of a fixed size: Docker cannot
limit a container's own layer on most file systems, and a full disk would hurt everybody.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from docker.types import LogConfig, Ulimit

from mixharness.builtin.docker.config import HOME, PROGRAM, TMP, DockerSandboxConfig, Kind
from mixharness.builtin.docker.engine import Engine, stubbornly, to_its_end
from mixharness.builtin.docker.network import Network
from mixharness.builtin.docker.supervisor import SCRIPT, Supervisor
from mixharness.builtin.local.owner import UidLease, lease_uid
from mixharness.errors import SandboxError
from mixharness.snapshot import MIB

WHY_LIMIT_S = 5.0
_ATTACH = "stream=1&stdin=1&stdout=1&stderr=1"
_FIRST_TO_DIE = 500
"""Where memory of the whole machine runs out, a sandbox goes before the runner."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where containers are made: the engine, the run's network, and what all have in common."""

    engine: Engine
    config: DockerSandboxConfig
    network: Network
    hosts: Mapping[str, str]
    """Names that can be looked up inside, with their addresses."""
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A started container and its first program."""

    name: str
    kind: Kind
    user: str
    """Number of the user that commands run as, twice, as Docker wants it."""
    supervisor: Supervisor
    lease: UidLease


async def start(site: Site, kind: Kind) -> Container:
    """Start a container; nothing of it is left when this raises or is cancelled.

    Raises:
        SandboxError: the engine refuses, e.g. for want of the image; or there is no engine.
    """
    engine, lease = site.engine, lease_uid()
    name = f"mixharness-{secrets.token_hex(8)}"
    uid = 0 if site.config.root else lease.uid
    supervisor: Supervisor | None = None
    try:
        await engine.call(_create, site, kind, name, uid)
        stream = await engine.stream(f"/containers/{name}/attach?{_ATTACH}", {})
        supervisor = Supervisor(stream, partial(_why, engine, name))
        await engine.call(engine.api.start, name)
        await supervisor.ready()
    except BaseException:
        await to_its_end(_remove(engine, name, lease, supervisor))
        raise
    return Container(name=name, kind=kind, user=f"{uid}:{uid}", supervisor=supervisor, lease=lease)


async def remove(engine: Engine, container: Container) -> None:
    """Kill and remove a container. One that cannot be removed is left to the reaper, loudly."""
    await to_its_end(_remove(engine, container.name, container.lease, container.supervisor))


async def _remove(
    engine: Engine, name: str, lease: UidLease, supervisor: Supervisor | None
) -> None:
    if supervisor is not None:
        supervisor.close()  # whoever still waits for something inside learns it at once
    try:
        await engine.call(stubbornly, partial(engine.remove_container, name))
    except SandboxError as exc:
        log.warning("container_left_behind", container=name, error=str(exc))
    finally:
        lease.sock.close()


async def _why(engine: Engine, name: str) -> str:
    """Say for people why a container ended, as far as the engine knows."""
    asking = asyncio.ensure_future(engine.call(engine.api.inspect_container, name))
    await asyncio.wait({asking}, timeout=WHY_LIMIT_S)
    if not asking.done():  # and nobody is to wait for it
        asking.add_done_callback(asyncio.Future.exception)
        return "the Docker engine does not answer"
    if (error := asking.exception()) is not None:
        return str(error)
    state = asking.result()["State"]
    keys = ("Status", "ExitCode", "OOMKilled", "Error")
    return ", ".join(f"{key} {state[key]!r}" for key in keys if state.get(key) not in ("", None))


def _create(site: Site, kind: Kind, name: str, uid: int) -> None:
    api = site.engine.api
    host = api.create_host_config(
        init=True,
        cap_drop=["ALL"],
        cap_add=["KILL"],  # the supervisor's only; other users do not get it
        security_opt=["no-new-privileges"],
        read_only=site.config.read_only,
        oom_score_adj=_FIRST_TO_DIE,
        log_config=LogConfig(type=LogConfig.types.NONE),
        binds={str(kind.program): {"bind": PROGRAM, "mode": "ro"}} if kind.program else None,
        tmpfs=_file_systems(kind, uid),
        **_limits(kind),
        **_network(site, kind),
    )
    api.create_container(
        kind.image,
        entrypoint=["sh", "-c", SCRIPT],
        command=[],
        name=name,
        hostname="sandbox",
        user="0:0",
        working_dir="/",
        stdin_open=True,
        environment={"HOME": HOME, "TMPDIR": TMP, "LANG": "C.UTF-8"},
        labels=dict(site.labels),
        host_config=host,
    )


def _limits(kind: Kind) -> dict[str, Any]:
    limits = kind.limits
    memory = limits.memory_mb * MIB
    return {
        "mem_limit": memory,
        "memswap_limit": memory,
        "nano_cpus": int(limits.cpus * 1e9),
        "pids_limit": limits.processes,
        "ulimits": [
            Ulimit(name="fsize", soft=limits.file_mb * MIB, hard=limits.file_mb * MIB),
            Ulimit(name="core", soft=0, hard=0),
        ],
    }


def _file_systems(kind: Kind, uid: int) -> dict[str, str]:
    limits = kind.limits
    # Files are memory: all three full leave a quarter of it, so that the supervisor survives.
    workspace_mb = max(1, min(limits.disk_mb, limits.memory_mb // 2))
    beside_mb = max(1, min(limits.disk_mb, limits.memory_mb // 8))
    common = f"rw,exec,nosuid,nodev,uid={uid},gid={uid}"
    systems = {
        kind.workspace: f"{common},mode=755,size={workspace_mb}m",
        HOME: f"{common},mode=700,size={beside_mb}m",
        TMP: f"{common},mode=1777,size={beside_mb}m",
    }
    if kind.workspace.startswith("/root/") and uid:
        # The image's own is closed to all but root, and so would be what lies in it.
        systems["/root"] = f"{common},mode=755,size=1m"
    return systems


def _network(site: Site, kind: Kind) -> dict[str, Any]:
    if not kind.network:
        return {"network_mode": "none"}
    # Docker's own name server would carry questions to the outside, past the network.
    gateway = site.network.gateway
    return {
        "network_mode": site.network.name,
        "dns": [gateway],
        "dns_opt": ["timeout:1", "attempts:1"],  # it never answers what it does not know
        "extra_hosts": dict(site.hosts),
    }
