"""Started containers that wait for their one use. Which kinds are wanted shows in what is taken."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any

import structlog

from mixharness.builtin.docker.config import Kind
from mixharness.builtin.docker.container import Container, Site, remove, start
from mixharness.errors import SandboxError

KINDS = 8
"""How many kinds are kept; of those before, what waits is removed."""

log = structlog.get_logger()


class Pool:
    """Keeps `site.config.pool` containers ready of each kind used lately."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ready: OrderedDict[Kind, list[Container]] = OrderedDict()
        self._work: set[asyncio.Task[None]] = set()
        self._filling: set[Kind] = set()

    async def take(self, kind: Kind) -> Container:
        """Return a container of this kind, a waiting one if there is; it is the caller's now.

        Raises:
            SandboxError: none waits and none can be started.
        """
        waiting = self._ready.get(kind, [])
        while waiting:
            container = waiting.pop(0)
            try:
                await container.supervisor.ask("count")  # it may have died while it waited
                return container
            except SandboxError:
                self._discard(container)
            except BaseException:
                self._discard(container)
                raise
        return await start(self._site, kind)

    def refill(self, kind: Kind) -> None:
        """Start in the background what is missing of a kind, and forget kinds long not used."""
        if not self._site.config.pool:
            return
        self._ready.setdefault(kind, [])
        self._ready.move_to_end(kind)
        if len(self._ready) > KINDS:
            self._forget(next(iter(self._ready)))
        if kind not in self._filling:
            self._filling.add(kind)
            self._spawn(self._fill(kind))

    async def filled(self) -> None:
        """Wait until all that is wanted is ready, or could not be started."""
        while self._work:
            await asyncio.wait(self._work)

    async def close(self) -> None:
        """Remove everything that waits; may be called twice."""
        for task in self._work:
            task.cancel()
        await self.filled()
        for kind in list(self._ready):
            self._forget(kind)
        await self.filled()

    async def _fill(self, kind: Kind) -> None:
        """Start containers one by one, so that those who wait for one are not held up."""
        try:
            while kind in self._ready and len(self._ready[kind]) < self._site.config.pool:
                container = await start(self._site, kind)
                if kind in self._ready:
                    self._ready[kind].append(container)
                else:
                    self._discard(container)
        except SandboxError as exc:  # whoever needs one will meet it, too
            log.warning("sandbox_pool_not_filled", image=kind.image, error=str(exc))
        finally:
            self._filling.discard(kind)

    def _forget(self, kind: Kind) -> None:
        for container in self._ready.pop(kind):
            self._discard(container)

    def _discard(self, container: Container) -> None:
        self._spawn(remove(self._site.engine, container))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
