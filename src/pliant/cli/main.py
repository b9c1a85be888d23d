"""The one binary. A subcommand is imported only when it is chosen, so that each starts as fast as it can."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version

import typer
from rich.console import Console
from rich.table import Table

from pliant.spec.installed import take_installed

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "doctor": ("pliant.cli.doctor.command:doctor", "Look at machines and links, and say what would help."),
    "embed": ("pliant.cli.embed:embed", "Place embedding tables on ranks."),
    "emulate": ("pliant.cli.emulate:emulate", "Run a command on emulated hosts with slow links."),
    "plan": ("pliant.cli.plan:plan", "Find the plan that is predicted to pay on a network."),
    "probe": ("pliant.cli.probe:probe", "Measure the links between ranks, and what their machine can do."),
    "report": ("pliant.cli.report.command:report", "Draw what happened in the steps of a run, and what was predicted."),
    "run": (
        "pliant.cli.run:run",
        "Run a training script as it is, relaxed: measure it, choose, and say what came out.",
    ),
    "schedule": ("pliant.cli.schedule:schedule", "Find and verify the order in which blocks should move."),
    "simulate": ("pliant.cli.simulate:simulate", "Predict what a training step takes under a plan."),
    "watch": ("pliant.cli.watch:watch", "Show a run live, from the log that it writes."),
}
"""Subcommand -> (where it is, what it does); installed distributions add theirs, see `_commands`."""


def main() -> None:
    """Run the command line. What a user can mend is said in one sentence, with exit code 2; --debug shows the rest."""
    arguments = sys.argv[1:]
    debug = arguments[:1] == ["--debug"]
    name, *rest = arguments[debug:] or ["--help"]
    if name == "--version":
        print(f"pliant, version {version('pliant')}")
        return
    commands, failures = (COMMANDS, ()) if name in COMMANDS else _commands()
    if name == "--help":
        _list(commands)
        for failure in failures:
            _say(f"{failure}.")
    elif name not in commands:
        said = f"there is no command {name!r}; there are {', '.join(commands)}; pliant-bench adds bench and others"
        _fail("; ".join((said, *failures)) + ".")
    else:
        try:
            _load(name, commands[name][0])(args=rest, prog_name=f"pliant {name}")
        except (ValueError, RuntimeError, OSError) as error:
            if debug:
                raise
            _fail(str(error))


def _commands() -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Return Pliant's subcommands and those of the group ``pliant.commands``, and why some could not be loaded."""
    added = dict[str, tuple[str, str]]()
    failures = take_installed("pliant.commands", added.update)
    return COMMANDS | added | COMMANDS, failures


def _load(name: str, where: str) -> typer.Typer:
    module, _, function = where.partition(":")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # What follows the command that is to be run belongs to that command.
    settings = {"allow_interspersed_args": False} if name in ("emulate", "run") else None
    app.command(context_settings=settings)(getattr(import_module(module), function))
    return app


def _list(commands: Mapping[str, tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 3))
    for name, (_, text) in commands.items():
        table.add_row(f"  {name}", text)
    console = Console()
    console.print("Data-parallel training that bends to the network it has.\n")
    console.print("pliant [--debug] COMMAND [OPTIONS], with --help for each; pliant --version\n")
    console.print(table)


def _say(sentence: str) -> None:
    Console(stderr=True).print(f"pliant: {sentence}", style="red", markup=False, highlight=False)


def _fail(sentence: str) -> None:
    _say(sentence)
    sys.exit(2)


if __name__ == "__main__":
    main()
