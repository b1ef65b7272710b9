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
from forebay.cli.tables import WIDE_COLUMNS, Cell, Column, Table, print_table, terminal_columns
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
    if config.deployments:
        parts += f", {_count(len(config.deployments), 'deployment')}"
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
    line = Column(title="Line", align="right", kind="whole")
    key = Column(title="Key", kind="whole")
    wrong, mend = (Column(title=title, kind="prose") for title in ("What is wrong", "How to mend it"))
    columns = terminal_columns()
    if columns < WIDE_COLUMNS or any(len(problem.key) > columns // 3 for problem in problems):
        print_table(Table(columns=[line, wrong], rows=[_short_row(problem) for problem in problems]))
    else:
        print_table(Table(columns=[line, key, wrong, mend], rows=[_row(problem) for problem in problems]))


def _row(problem: ConfigProblem) -> tuple[str | Cell, ...]:
    message = Cell(text=problem.message, style=_style(problem))
    return _line(problem), Cell(text=problem.key, style="cyan"), message, problem.hint


def _short_row(problem: ConfigProblem) -> tuple[str | Cell, ...]:
    """All of it below each other, for lack of room beside each other."""
    key = f"{problem.key}: " if problem.key else ""
    return _line(problem), Cell(text=f"{key}{problem.message}", style=_style(problem), note=problem.hint)


def _line(problem: ConfigProblem) -> str:
    return "" if problem.line is None else str(problem.line)


def _style(problem: ConfigProblem) -> str:
    return "red" if problem.severity is Severity.ERROR else "yellow"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
