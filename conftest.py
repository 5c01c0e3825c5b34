"""What every test folder shares: asynchronous tests run under asyncio."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The only backend: the proxy's server and the engines' threads speak asyncio."""
    return "asyncio"
