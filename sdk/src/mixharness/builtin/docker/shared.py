"""What all sandboxes of a run share: the engine, one network, its firewall, the pool."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from mixharness.builtin.docker.config import DockerSandboxConfig
from mixharness.builtin.docker.container import Site
from mixharness.builtin.docker.engine import Engine, stubbornly, to_its_end
from mixharness.builtin.docker.firewall import Destination, Firewall
from mixharness.builtin.docker.network import Network, make_network
from mixharness.builtin.docker.owner import labels, this_process
from mixharness.builtin.docker.pool import Pool
from mixharness.errors import SandboxError

NETWORK_LABEL = "mixharness.network"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One run's part of the engine. `open_shared` makes it, `close` removes it."""

    engine: Engine
    network: Network
    firewall: Firewall | None
    site: Site
    pool: Pool

    async def admit(self, port: int) -> None:
        """Let sandboxes reach a port of the gateway."""
        if self.firewall is not None:
            await self.engine.call(self.firewall.admit, port, self.network.gateway)

    async def close(self) -> None:
        """Remove everything; what the engine does not give up is left to the reaper, loudly."""
        await self.pool.close()
        await _close(self.engine, self.network, self.firewall)


async def open_shared(config: DockerSandboxConfig) -> Shared:
    """Make a run's network and close it; nothing is left when this raises.

    Raises:
        SandboxError: there is no engine, no address range, or no right to set firewall rules.
        ValueError: a place in `egress` is no `host:port`, or cannot be found.
    """
    places = await asyncio.to_thread(_resolve, config.egress)
    if places and not config.firewall:
        raise ValueError("egress: without the firewall all places would be open, not these alone")
    owner = this_process()
    engine = await asyncio.to_thread(Engine)
    network: Network | None = None
    firewall: Firewall | None = None
    try:
        make = partial(make_network, internal=not config.egress)
        network = await engine.call(make, engine.api, labels(owner))
        if config.firewall:
            firewall = Firewall(bridge=network.bridge, owner=owner)
            await engine.call(_shut, firewall, places)
        else:
            log.warning("docker_firewall_off", open="every port of this machine", to=network.name)
    except BaseException:
        await to_its_end(_close(engine, network, firewall))
        raise
    site = Site(
        engine=engine,
        config=config,
        network=network,
        hosts={place.host: place.address for place in places},
        labels=labels(owner) | {NETWORK_LABEL: network.name},
    )
    return Shared(engine=engine, network=network, firewall=firewall, site=site, pool=Pool(site))


def _resolve(egress: Sequence[str]) -> list[Destination]:
    """Look up the address of each place; blocks."""
    found = []
    for place in egress:
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"egress: {place!r} must be host:port")
        try:
            address = socket.gethostbyname(host)
        except OSError as exc:
            raise ValueError(f"egress: {host!r} cannot be found: {exc}") from exc
        found.append(Destination(host=host, address=address, port=int(port)))
    return found


def _shut(firewall: Firewall, places: Sequence[Destination]) -> None:
    """Close a network but for some places outside; blocks."""
    try:
        firewall.close()
        if places:
            firewall.let_out(places)
    except SandboxError as exc:
        raise SandboxError(
            f"this machine's other ports cannot be closed to sandboxes: {exc}\n"
            "  run as root with iptables, or set `firewall = false` where no program listens here "
            "that a policy must not reach"
        ) from exc


async def _close(engine: Engine, network: Network | None, firewall: Firewall | None) -> None:
    steps: list[Callable[[], None]] = [firewall.remove] if firewall else []
    if network is not None:
        steps.insert(0, partial(stubbornly, partial(_remove, engine, network)))
    for step in steps:
        try:
            await engine.call(step)
        except SandboxError as exc:
            log.warning("network_left_behind", network=network and network.name, error=str(exc))
    await asyncio.to_thread(engine.close)


def _remove(engine: Engine, network: Network) -> None:
    """Remove a network with the containers that could not be removed before."""
    left = {"label": f"{NETWORK_LABEL}={network.name}"}
    for container in engine.api.containers(all=True, filters=left):
        engine.remove_container(container["Id"])
    engine.remove_network(network.name)
