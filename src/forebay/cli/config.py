"""`forebay config`: every mistake at once, all settings as they apply, and the schema for editors."""

import sys
from pathlib import Path

from forebay.app.config import (
    ConfigProblem,
    Severity,
    check_config,
    dump_config,
    find_config_file,
    load_config,
)
from forebay.app.config_settings import compute_schema_text
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import Outcome, is_plain, paint, print_line


def check(file: Path | None) -> Outcome:
    config, problems = check_config(file)
    if problems:
        _print_problems(problems)
    place = find_config_file(file) or "no file, the defaults apply"
    if config is None:
        errors = sum(problem.severity is Severity.ERROR for problem in problems)
        print_line(paint(f"{place}: {_count(errors, 'mistake')}", "red"))
        return Outcome.PROBLEM
    parts = f"{_count(len(config.models), 'model')}, {_count(len(config.engines), 'engine')}"
    noted = f", {_count(len(problems), 'warning')}" if problems else ""
    print_line(paint(f"{place}: ok ({parts}{noted})", "green"))
    return Outcome.OK


def show(file: Path | None) -> Outcome:
    sys.stdout.write(dump_config(load_config(file, secrets_needed=False)))
    return Outcome.OK


def schema() -> Outcome:
    sys.stdout.write(compute_schema_text())
    return Outcome.OK


def _print_problems(problems: tuple[ConfigProblem, ...]) -> None:
    if is_plain():
        for problem in problems:
            warning = "warning: " if problem.severity is Severity.WARNING else ""
            print_line(f"{warning}{problem.render()}")
        return
    print_table(
        Table(
            columns=[
                Column(title="Line", align="right"),
                *map(_titled, ("Key", "What is wrong", "How to mend it")),
            ],
            rows=[_row(problem) for problem in problems],
        )
    )


def _titled(title: str) -> Column:
    return Column(title=title)


def _row(problem: ConfigProblem) -> tuple[str | Cell, ...]:
    style = "red" if problem.severity is Severity.ERROR else "yellow"
    line = "" if problem.line is None else str(problem.line)
    return line, Cell(text=problem.key, style="cyan"), Cell(text=problem.message, style=style), problem.hint


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
