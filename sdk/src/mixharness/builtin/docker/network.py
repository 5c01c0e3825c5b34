"""One bridge per run, with room for all its sandboxes. What may pass it is firewall.py's."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

from mixharness.errors import SandboxError

_SUPERNET = IPv4Network("10.192.0.0/10")
"""Docker itself takes 172.17-31 and 192.168 first, so its next networks do not meet ours."""
_PREFIX = 20
"""4,094 addresses; a Linux bridge has 1,023 ports."""
_ROUTES = Path("/proc/net/route")
_LONGEST_DEFAULT = 8
"""Bits; a route shorter than this, e.g. a VPN's half of everything, gives way to any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of sandboxes."""

    name: str
    bridge: str
    """Interface on this machine, at most 15 characters."""
    gateway: str
    """Address of this machine in it."""


def make_network(api: Any, labels: Mapping[str, str], *, internal: bool) -> Network:
    """Make a network on which no container can reach another. Blocks.

    Args:
        api: the docker package's client.
        labels: of the network.
        internal: leave out the way to the outside.

    Raises:
        SandboxError: every address range is taken.
    """
    suffix = secrets.token_hex(4)
    name, bridge = f"mixharness-{suffix}", f"mh{suffix}"
    options = {
        "com.docker.network.bridge.name": bridge,
        "com.docker.network.bridge.enable_icc": "false",
    }
    for subnet in _free_subnets():
        gateway = str(next(subnet.hosts()))
        pool = IPAMPool(subnet=str(subnet), gateway=gateway)
        try:
            api.create_network(
                name,
                driver="bridge",
                options=options,
                ipam=IPAMConfig(pool_configs=[pool]),
                internal=internal,
                labels=dict(labels),
            )
        except APIError as exc:
            if "overlaps" not in str(exc):
                raise
        else:
            return Network(name=name, bridge=bridge, gateway=gateway)
    raise SandboxError(f"all of {_SUPERNET} is routed elsewhere: no address range for sandboxes")


def _free_subnets() -> Iterator[IPv4Network]:
    """Yield ranges that no route of this machine meets, in random order: runs start together."""
    routes = list(_routes())
    subnets = list(_SUPERNET.subnets(new_prefix=_PREFIX))
    for subnet in random.sample(subnets, len(subnets)):
        if not any(subnet.overlaps(route) for route in routes):
            yield subnet


def _routes() -> Iterator[IPv4Network]:
    for line in _ROUTES.read_text().splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        route = IPv4Network((_dotted(destination), _dotted(mask)))
        if route.prefixlen >= _LONGEST_DEFAULT:
            yield route


def _dotted(number: str) -> str:
    """Return an address from the eight digits in which the kernel shows it."""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(number)))
