"""Entry point: builds the app from what is installed and turns errors into exit codes.

Exit codes: 0 done; 1 a check found something; 2 the user must change something (one message, no
traceback, nothing was started); 130 interrupted. A bug is a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from mixharness.cli import commands
from mixharness.errors import ConfigError, PluginError, ProgramMissingError, TemplateError
from mixharness.logs import setup_logs
from mixharness.plugins import Registry, load_plugins

USER_ERRORS = (ConfigError, PluginError, ProgramMissingError, TemplateError)
EXIT_USER = 2
EXIT_INTERRUPTED = 130


def build_app(registry: Registry) -> typer.Typer:
    """Return the app with the SDK's commands and those of installed command modules."""
    app = typer.Typer(
        name="mixharness",
        help="Train one policy inside real, unmodified agent harnesses.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    commands.register(app)
    for module in registry.commands.values():
        module.register_commands(app)
    return app


def run(argv: Sequence[str] | None = None, registry: Registry | None = None) -> int:
    """Run one command line and return its exit code."""
    setup_logs()
    try:
        registry = load_plugins() if registry is None else registry
        build_app(registry)(args=argv, prog_name="mixharness", obj=registry)
    except USER_ERRORS as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_USER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as exc:  # how typer ends, always
        return exc.code if isinstance(exc.code, int) else 0
    return 0


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())
