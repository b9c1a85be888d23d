"""The one binary. A subcommand is imported only when it is chosen, so that each starts as fast as it can."""

import sys
from importlib import import_module
from importlib.metadata import entry_points, version

import typer
from rich.console import Console
from rich.table import Table

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
    elif name == "--help":
        _list_commands()
    elif name not in (commands := COMMANDS if name in COMMANDS else _commands()):
        _fail(f"there is no command {name!r}; there are {', '.join(commands)}; pliant-bench adds bench and others.")
    else:
        try:
            _load(name, commands[name][0])(args=rest, prog_name=f"pliant {name}")
        except (ValueError, RuntimeError, OSError) as error:
            if debug:
                raise
            _fail(str(error))


def _commands() -> dict[str, tuple[str, str]]:
    """Return the subcommands: Pliant's own, then what entry points of the group ``pliant.commands`` hold."""
    return COMMANDS | {
        name: command
        for found in entry_points(group="pliant.commands")
        for name, command in found.load().items()
        if name not in COMMANDS
    }


def _load(name: str, where: str) -> typer.Typer:
    module, _, function = where.partition(":")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # What follows the command that is to be run belongs to that command.
    settings = {"allow_interspersed_args": False} if name in ("emulate", "run") else None
    app.command(context_settings=settings)(getattr(import_module(module), function))
    return app


def _list_commands() -> None:
    table = Table.grid(padding=(0, 3))
    for name, (_, text) in _commands().items():
        table.add_row(f"  {name}", text)
    console = Console()
    console.print("Data-parallel training that bends to the network it has.\n")
    console.print("pliant [--debug] COMMAND [OPTIONS], with --help for each; pliant --version\n")
    console.print(table)


def _fail(sentence: str) -> None:
    Console(stderr=True).print(f"pliant: {sentence}", style="red", markup=False, highlight=False)
    sys.exit(2)


if __name__ == "__main__":
    main()
