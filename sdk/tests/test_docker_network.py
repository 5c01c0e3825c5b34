from ipaddress import IPv4Network
from pathlib import Path

import pytest

from mixharness.builtin.docker import network

HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
DEFAULT = "eth0 00000000 0102A8C0 0003 0 0 0 00000000 0 0 0"
HALF_OF_ALL = "tun0 00000000 0102A8C0 0003 0 0 0 00000080 0 0 0"  # 0.0.0.0/1, a VPN's
FIRST_HALF = "vpn0 0000C00A 00000000 0001 0 0 0 0000E0FF 0 0 0"  # 10.192.0.0/11
TAKEN = IPv4Network("10.192.0.0/11")


def subnets(monkeypatch: pytest.MonkeyPatch, file: Path, *routes: str) -> list[IPv4Network]:
    file.write_text("\n".join([HEAD, *routes, ""]))
    monkeypatch.setattr(network, "_ROUTES", file)
    return list(network._free_subnets())


def test_ranges_that_are_routed_elsewhere_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = subnets(monkeypatch, tmp_path / "route", DEFAULT, HALF_OF_ALL, FIRST_HALF)
    assert len(found) == 512
    assert not any(subnet.overlaps(TAKEN) for subnet in found)


def test_each_has_room_for_all_ports_of_a_bridge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = subnets(monkeypatch, tmp_path / "route", DEFAULT)
    assert len(found) == 1024
    assert min(subnet.num_addresses for subnet in found) > 1024 + 2
