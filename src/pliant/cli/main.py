"""The one binary. A subcommand is imported only when it is chosen, so that each starts as fast as it can."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any, cast

import click
import typer

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "bench": ("pliant.cli.bench.command:bench", "Train with many algorithms side by side, and compare."),
    "emulate": ("pliant.cli.emulate:emulate", "Run a command on emulated hosts with slow links."),
}
"""Subcommand -> (where it is, what it does)."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        app = typer.Typer(add_completion=False)
        settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        app.command(cmd_name, context_settings=settings if cmd_name == "emulate" else None)(function)
        return cast(click.Command, typer.main.get_command(app))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def main() -> None:
    """Run the command line. What a user can mend is said in one sentence, with exit code 2; --debug shows the rest."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments[:1]
    group = _Lazy(
        name="pliant",
        help="Data-parallel training that bends to the network it has.",
        params=[click.Option(["--debug"], is_flag=True, help="Show the traceback of an error.")],
        callback=lambda debug: None,
    )
    group = click.version_option(version("pliant"), prog_name="pliant")(group)
    try:
        group.main(args=arguments, prog_name="pliant", standalone_mode=True)
    except (ValueError, RuntimeError, OSError) as error:
        if debug:
            raise
        click.secho(f"pliant: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
