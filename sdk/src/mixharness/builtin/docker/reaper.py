"""Removing what a crashed runner left: containers, networks, firewall rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from docker.errors import DockerException
from requests.exceptions import RequestException

from mixharness.builtin.docker.engine import Engine, stubbornly
from mixharness.builtin.docker.firewall import remove_abandoned
from mixharness.builtin.docker.owner import LABEL, OWNER_LABEL, abandoned
from mixharness.errors import SandboxError

log = structlog.get_logger()


async def reap() -> int:
    """Remove what belongs to runners that are gone; return how many containers that were.

    What cannot be removed is logged, and left for the next time.
    """
    engine = Engine()
    try:
        return await engine.call(_reap, engine)
    finally:
        engine.close()


def _reap(engine: Engine) -> int:
    api, ours = engine.api, {"label": f"{LABEL}=1"}
    containers = [each for each in api.containers(all=True, filters=ours) if _left(each)]
    removed = sum(_removed(engine.remove_container, each["Id"]) for each in containers)
    for network in api.networks(filters=ours):
        if _left(network):
            _removed(engine.remove_network, network["Id"])
    try:
        remove_abandoned(abandoned)
    except SandboxError as exc:  # whoever may set no rules has left none
        log.info("firewall_not_reaped", error=str(exc))
    return removed


def _left(thing: dict[str, Any]) -> bool:
    return abandoned(thing["Labels"][OWNER_LABEL])


def _removed(remove: Callable[[str], None], ident: str) -> bool:
    try:
        stubbornly(partial(remove, ident))
    except (DockerException, RequestException) as exc:
        log.warning("not_reaped", ident=ident, error=str(exc))
        return False
    return True
