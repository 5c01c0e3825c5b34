"""An MCP server with one tool, `secret_word`: a double for a task's service, standard library only.

`python3 mcp_server.py PORT` serves streamable HTTP at `/mcp`; with `check` behind it, it says with
its exit code whether such a server answers. It keeps no sessions and streams nothing.
"""

from __future__ import annotations

import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORD = "xyzzy"
_TOOL = {
    "name": "secret_word",
    "description": "Tells the secret word.",
    "inputSchema": {"type": "object", "properties": {}},
}


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None for a method that does not exist."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "words", "version": "1"},
        }
    if method == "tools/call":
        return {"content": [{"type": "text", "text": WORD}]}
    return {"tools/list": {"tools": [_TOOL]}, "ping": {}}.get(method)


class Handler(BaseHTTPRequestHandler):
    """One JSON-RPC message per POST."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a request; a notification gets none."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in asked:
            self._send(202, b"")
            return
        found = result(asked["method"], asked.get("params") or {})
        error = {"code": -32601, "message": "no such method"}
        told = {"error": error} if found is None else {"result": found}
        self._send(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}).encode())

    def do_GET(self) -> None:
        """Refuse to open a stream of the server's own messages: there are none."""
        self._send(405, b"")

    do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    address = ("127.0.0.1", int(sys.argv[1]))
    if sys.argv[2:] == ["check"]:
        socket.create_connection(address, timeout=5).close()
    else:
        ThreadingHTTPServer(address, Handler).serve_forever()
