"""The loop's end of OpenAI Chat Completions. It keeps no history."""

from __future__ import annotations

from typing import Any, Self

import httpx


class ContextOverflow(Exception):
    """The conversation no longer fits the model's context."""


class ChatClient:
    """One connection to the model server; an async context manager that owns it.

    There is no timeout: how long a rollout may take is the runner's to say.
    """

    def __init__(self, base_url: str, key: str, model: str) -> None:
        self._model = model
        self._http = httpx.AsyncClient(
            base_url=f"{base_url}/v1",
            headers={"authorization": f"Bearer {key}"},
            timeout=None,
            trust_env=False,  # a proxy variable must not send the calls elsewhere
            verify=False,  # plain HTTP on the loopback interface: saves loading certificates
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the assistant message, to be sent back as it is.

        Raises:
            ContextOverflow: the conversation does not fit.
            ConnectionError: the server cannot be reached or answered with an error.
        """
        body = {"model": self._model, "messages": messages, "tools": tools}
        try:
            response = await self._http.post("/chat/completions", json=body)
        except httpx.TransportError as exc:
            raise ConnectionError(f"the model server: {type(exc).__name__}: {exc}") from exc
        if response.is_success:
            message: dict[str, Any] = response.json()["choices"][0]["message"]
            return message
        if response.status_code == 400 and "context_length_exceeded" in response.text:
            raise ContextOverflow(response.text)
        raise ConnectionError(f"the model server: {response.status_code} {response.text[:500]}")
