"""Rules that leave a sandbox one way out: the proxy's port. Needs root and `iptables`.

An `internal` network keeps packets from the outside, by dropping them, but leaves all of this
machine's services open. These rules close them, and refuse at once instead of letting time run out.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mixharness.errors import SandboxError

_MARK = "mixharness:"
_LOCK_WAIT_S = "30"
_INPUT, _DOCKER, _FORWARD = "INPUT", "DOCKER-USER", "FORWARD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A place to which sandboxes may connect by TCP."""

    host: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """The rules of one network. Every method blocks."""

    bridge: str
    owner: str

    def close(self) -> None:
        """Refuse everything from the network, to this machine and to the outside.

        Raises:
            SandboxError: rules cannot be set.
        """
        for chain in (_INPUT, _outside()):
            self._insert(chain, "-i", self.bridge, "-j", "REJECT")

    def admit(self, port: int, address: str) -> None:
        """Let sandboxes connect to one port of this machine."""
        self._insert(_INPUT, *self._tcp(address, port))

    def let_out(self, destinations: Sequence[Destination]) -> None:
        """Let sandboxes connect to some addresses outside, and these answer."""
        chain = _outside()
        established = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
        self._insert(chain, "-o", self.bridge, *established, "-j", "ACCEPT")
        for destination in destinations:
            self._insert(chain, *self._tcp(destination.address, destination.port))

    def remove(self) -> None:
        """Remove all rules of this network; there may be none."""
        _remove(lambda rule: _bridge_of(rule) == self.bridge)

    def _tcp(self, address: str, port: int) -> Sequence[str]:
        match = ("-p", "tcp", "-d", address, "--dport", str(port))
        return ("-i", self.bridge, *match, "-j", "ACCEPT")

    def _insert(self, chain: str, *rule: str) -> None:
        mark = ("-m", "comment", "--comment", f"{_MARK}{self.owner}")
        _iptables("-I", chain, "1", *rule, *mark)


def remove_abandoned(abandoned: Callable[[str], bool]) -> None:
    """Remove the rules whose owner is gone. Blocks."""
    _remove(lambda rule: abandoned(_owner_of(rule)))


def _outside() -> str:
    """Return the chain that sees packets to the outside before Docker's own rules drop them."""
    return _DOCKER if f"-N {_DOCKER}" in _iptables("-S").splitlines() else _FORWARD


def _remove(wanted: Callable[[Sequence[str]], bool]) -> None:
    for line in _iptables("-S").splitlines():
        rule = shlex.split(line)
        if rule[0] == "-A" and _owner_of(rule) and wanted(rule):
            _iptables("-D", *rule[1:])


def _owner_of(rule: Sequence[str]) -> str:
    return next((word.removeprefix(_MARK) for word in rule if word.startswith(_MARK)), "")


def _bridge_of(rule: Sequence[str]) -> str:
    return next((b for a, b in pairwise(rule) if a in ("-i", "-o")), "")


def _iptables(*arguments: str) -> str:
    command = ["iptables", "-w", _LOCK_WAIT_S, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SandboxError("iptables is not installed") from None
    if done.returncode:
        raise SandboxError(f"iptables: {done.stderr.strip()}")
    return done.stdout
