"""What a person looks at: the live progress of a run and the report over a finished run folder."""

from mixharness.viewer.progress import RunProgress, summary_table
from mixharness.viewer.report import write_report

__all__ = ["RunProgress", "summary_table", "write_report"]
