"""New weights into a running vLLM server, through its own weight-transfer API. Runs in a thread.

A `file` transfer names the saved folder; vllm_file.py loads it in the server. GPU transfers use
vLLM's trainer side, in vllm_gpu_transfer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from safetensors import safe_open

from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm_client import address_of, error_text

_UPDATE_S = 600.0
_MAYBE_TIED = {"lm_head.weight"}
"""Some save it beside the embedding that it is tied to, others do not."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A folder of weights and their number."""

    folder: Path
    version: int

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the safetensors files."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


class SyncClient:
    """The four calls that vLLM's trainer side makes (`VLLMWeightSyncClient`), and a few more."""

    def __init__(self, url: str) -> None:
        self.url = url
        base_url, socket_path = address_of(url)
        transport = httpx.HTTPTransport(uds=socket_path)
        self._http = httpx.Client(base_url=base_url, transport=transport, timeout=_UPDATE_S)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect trainer and server."""
        self.call("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin."""
        self.call("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Transfer."""
        self.call("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End."""
        self.call("/finish_weight_update")

    def call(self, path: str, body: Any = None, **params: str) -> dict[str, Any]:
        """Call a route.

        Raises:
            EngineError: the server does not answer, or answered with an error.
        """
        try:
            response = self._http.post(path, json=body, params=params)
        except httpx.HTTPError as exc:
            raise EngineError(f"vLLM at {self.url} does not answer {path}: {exc!r}") from exc
        if response.is_error:
            raise EngineError(f"vLLM at {self.url} refused {path}: {error_text(response.content)}")
        return response.json() if response.content else {}

    def world_size(self) -> int:
        """Return the number of the server's GPUs."""
        response = self._http.get("/get_world_size").raise_for_status()
        return int(response.json()["world_size"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class Sender(Protocol):
    """Moves weights to one server."""

    def send(self, folder: Path) -> None:
        """Move all tensors of the folder, from `start_weight_update` to `finish_weight_update`."""

    def close(self) -> None:
        """Give up the connection."""


class FileSender:
    """Names the folder to the server, which must see it under the same path."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        client.init_weight_transfer_engine({})

    def send(self, folder: Path) -> None:
        """Let the server load the folder."""
        self._client.start_weight_update()
        self._client.update_weights({"folder": str(folder.resolve())})
        self._client.finish_weight_update()

    def close(self) -> None:
        """Do nothing."""


class WeightLink:
    """The way of new weights to one server. Every call blocks: call it in a thread.

    Args:
        url: of the server.
        sync: `file`, `nccl` or `ipc`.

    Raises:
        EngineError: the server does not take part.
    """

    def __init__(self, url: str, sync: str) -> None:
        self._client = SyncClient(url)
        self._sender: Sender
        if sync == "file":
            self._sender = FileSender(self._client)
        else:
            from mixharness_trainer.engines.vllm_gpu_transfer import GpuSender

            self._sender = GpuSender(self._client, sync)

    def label(self, version: int) -> None:
        """Number the weights that the server has."""
        self._client.call("/update_weight_version", {"new_version": str(version)})

    def send(self, weights: Weights) -> None:
        """Pause, move the weights, number them, forget all cached keys, and go on.

        What is being sampled stays and goes on with the new weights; its keys are computed anew.

        Raises:
            EngineError: it failed; what the server holds now is unknown.
        """
        client = self._client
        client.call("/pause", mode="keep")
        self._sender.send(weights.folder)
        self.label(weights.version)
        reset = client.call("/reset_prefix_cache", reset_running_requests="true")
        if not reset.get("success"):
            raise EngineError(f"vLLM at {client.url} keeps keys of older weights: {reset}")
        client.call("/resume")

    def close(self) -> None:
        """Give up the connection."""
        self._sender.close()
        self._client.close()


def check_fit(source: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Compare a folder with what the servers run, before one of them takes half of it.

    Raises:
        EngineError: names or shapes are others.
    """
    found = tensor_shapes(source)
    problems = [f"{name} is missing" for name in shapes.keys() - found.keys() - _MAYBE_TIED]
    problems += [
        f"{name} is not in the model" for name in found.keys() - shapes.keys() - _MAYBE_TIED
    ]
    problems += [
        f"{name} has shape {found[name]}, the model's has {shape}"
        for name, shape in shapes.items()
        if name in found and found[name] != shape
    ]
    if problems:
        raise EngineError(f"weights in {source} do not fit: " + "; ".join(sorted(problems)[:5]))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a folder of safetensors files, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  a safetensors file is no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes
