"""What Snakemake says on the terminal: one line a job, between the progress lines of the scripts.

Snakemake finds the module by its name when `rules/` is on PYTHONPATH, as the Makefile puts it:
`snakemake --logger aerie`. Its own full account goes to `.snakemake/log/` as always.
"""

import logging
from datetime import datetime
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.text import Text
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

# A failed job has printed its own error, and `_failed` names the job: these repeat it at length.
_REPEATS = ("RuleException:\nCalledProcessError", "WorkflowError:\nAt least one job did not")
_REASON_CHARACTERS = 160
_WORTH_SAYING = ("Nothing to be done", "Unlocking")


class LogHandler(LogHandlerBase):
    """Prints jobs as they start, jobs that fail, errors of the workflow, and the end."""

    def __post_init__(self) -> None:
        self._console = Console(
            stderr=True, highlight=False, soft_wrap=True, no_color=self.common_settings.nocolor
        )
        self._done, self._total = 0, 0
        self._names: dict[int, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a person wants to know of `record`, often nothing."""
        fields: dict[str, Any] = record.__dict__
        event = fields.get("event")
        if event == LogEvent.RUN_INFO:
            self._total = fields["stats"].get("total", 0)
            # A dry run tells the counts before and after the jobs; after is where they are read.
            if self.common_settings.dryrun and self._names:
                self._say(record.getMessage().rstrip())
        elif event == LogEvent.PROGRESS:
            self._done, self._total = fields["done"], fields["total"]
            if self._done == self._total:
                self._say(f"all {self._total} jobs are done", "green")
        elif event == LogEvent.JOB_INFO:
            self._started(fields)
        elif event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR):
            self._failed(fields)
        elif record.levelno >= logging.WARNING:
            text = record.getMessage()
            if not text.startswith(_REPEATS) and "a job execution failed" not in text:
                self._say(text, "red" if record.levelno >= logging.ERROR else "yellow")
            elif text.startswith(_REPEATS[1]):
                self._say("stopped; mend it and run the same command again: it continues", "red")
        elif event is None and record.getMessage().startswith(_WORTH_SAYING):
            self._say(record.getMessage(), "green")

    def _started(self, fields: dict[str, Any]) -> None:
        name = " ".join([fields["rule_name"], *map(str, fields["wildcards"].values())])
        self._names[fields["jobid"]] = name
        if not fields["shellcmd"]:  # a target that only collects
            return
        line = Text(f"{datetime.now():%H:%M:%S} ", "dim")
        if not self.common_settings.dryrun:
            line.append(f"[{self._done}/{self._total}] ", "dim")
        line.append(name, "bold")
        if fields["rule_msg"]:
            line.append(f"  {fields['rule_msg']}")
        if self.common_settings.dryrun:
            line.append(f"  {shorten(fields['reason'], _REASON_CHARACTERS, placeholder=' ...')}")
        self._console.print(line)

    def _failed(self, fields: dict[str, Any]) -> None:
        self._say(f"failed: {self._names.get(fields.get('jobid', -1), 'a group of jobs')}", "red")
        for log in fields.get("log") or ():
            self._say(f"  its log: {log}", "red")

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style))

    @property
    def writes_to_stream(self) -> bool:
        return True

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return True

    @property
    def has_formatter(self) -> bool:
        return True

    @property
    def needs_rulegraph(self) -> bool:
        return False
