"""Certifying a harness: its real program, a scripted policy, a fixed set of situations.

What is run stands in `situations.toml`, what a program version is expected to do in a file of its
plugin (docs/certify.md). Nothing here trains or scores.
"""

from mixharness.certify.rehearse import certify
from mixharness.certify.verdict import Certificate, ForkFound, SituationReport

__all__ = ["Certificate", "ForkFound", "SituationReport", "certify"]
