"""The Docker engine of this machine: blocking calls in threads. What is asked is the others'.

Every failure of the engine is a `SandboxError`: no policy reaches it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

import docker
import structlog
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from mixharness.builtin.docker.stream import Stream, hijack
from mixharness.errors import SandboxError

THREADS = 32
CALL_LIMIT_S = 120.0
REMOVE_AGAIN_S = (0.5, 2.0, 5.0)
_HOW_TO_GET_IMAGES = "get it with `docker pull`, the default one with `mixharness sandbox build`"
_SOCKET = "unix:///var/run/docker.sock"

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")


class Engine:
    """A connection to the engine. Bound to no event loop; `close` frees its threads.

    Attributes:
        api: the docker package's client; each call of it blocks.
    """

    def __init__(self) -> None:
        host = os.environ.get("DOCKER_HOST", _SOCKET)
        if not host.startswith("unix://"):
            raise SandboxError(
                f"DOCKER_HOST is {host}: sandboxes need an engine on this machine, at a unix:// "
                "socket, since programs in them talk to the proxy here"
            )
        self._socket = host.removeprefix("unix://")
        _check_listening(self._socket)
        with _attributed():
            self.api: Any = docker.APIClient(
                base_url=host, version="auto", timeout=CALL_LIMIT_S, max_pool_size=THREADS
            )
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a thread.

        A cancel waits for it to end, within `CALL_LIMIT_S`: what it makes can then be removed.

        Raises:
            SandboxError: the engine refuses, or does not answer.
        """
        loop = asyncio.get_running_loop()
        work = partial(_run, partial(function, *args, **kwargs))
        return await to_its_end(loop.run_in_executor(self._threads, work))

    async def stream(self, path: str, body: Mapping[str, object]) -> Stream:
        """Open a raw connection by a POST request, e.g. to `/exec/ID/start`.

        Raises:
            SandboxError: the engine refuses, or does not answer.
        """
        return await hijack(self._socket, f"/v{self.api.api_version}{path}", body)

    def close(self) -> None:
        """Let go of the connections, once what is under way has ended; may be called twice."""
        self._threads.shutdown(wait=True)
        self.api.close()

    def remove_container(self, name: str) -> None:
        """Kill and remove a container and its volumes, if it is there. Blocks."""
        with suppress(NotFound):
            self.api.remove_container(name, v=True, force=True)

    def remove_network(self, name: str) -> None:
        """Remove a network, if it is there, and whatever still hangs on it. Blocks.

        The engine can forget to take the end of a container that died in its start off a network,
        which it then gives up by force alone.
        """
        with suppress(NotFound):
            for end in self.api.inspect_network(name)["Containers"].values():
                log.info("network_end_cut_off", network=name, container=end["Name"])
                with suppress(APIError):  # it may be leaving by itself
                    self.api.disconnect_container_from_network(end["Name"], name, force=True)
            self.api.remove_network(name)


def check_image(name: str) -> None:
    """Check that the engine has an image; where there is no engine, all is well so far. Blocks.

    Raises:
        ValueError: it has not.
    """
    with suppress(SandboxError):
        engine = Engine()
        try:
            engine.api.inspect_image(name)
        except ImageNotFound:
            raise ValueError(f"image {name!r} is not there: {_HOW_TO_GET_IMAGES}") from None
        except (DockerException, RequestException) as exc:
            log.warning("image_not_checked", image=name, error=str(exc))
        finally:
            engine.close()


def _check_listening(path: str) -> None:
    # The docker package asks as well, but would not close its connections after that.
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as exc:
            raise SandboxError(f"no Docker engine answers at {path}: {exc}") from exc


async def to_its_end(work: Awaitable[T]) -> T:
    """Return what `work` returns; a cancel is passed on only when the work has ended."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # marks it as seen
        raise


def stubbornly(remove: Callable[[], None]) -> None:
    """Remove something, more than once if need be: the engine may be about to restart. Blocks."""
    for wait_s in REMOVE_AGAIN_S:
        with suppress(DockerException, RequestException):
            return remove()
        time.sleep(wait_s)
    remove()


def _run(function: Callable[[], T]) -> T:
    with _attributed():
        return function()


@contextmanager
def _attributed() -> Iterator[None]:
    """Turn what the docker package raises into a `SandboxError`."""
    try:
        yield
    except ImageNotFound as exc:
        raise SandboxError(
            f"the Docker engine has no such image: {exc.explanation}\n  {_HOW_TO_GET_IMAGES}"
        ) from exc
    except APIError as exc:
        raise SandboxError(f"the Docker engine refuses: {exc.explanation or exc}") from exc
    except (DockerException, RequestException) as exc:
        raise SandboxError(f"the Docker engine does not answer: {exc}") from exc
