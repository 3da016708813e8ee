"""`python -m relax.plan [overrides …]`: what a run would start, on what, and how much work it is.

Prints roles, placement, batch arithmetic, work a phase, memory estimates, and the exact Megatron and SGLang arguments.
Exit codes: 0 the config is valid, 2 it is not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from relax.check import build_parser, text_report
from relax.config.compose import compose_or_resume
from relax.config.errors import ConfigError
from relax.config.plan import Plan, build_plan
from relax.config.resolve import resolve
from relax.config.rules import Scope, Severity, check


def main(arguments: list[str] | None = None) -> int:
    """Print the plan; the exit code."""
    options = build_parser(__doc__).parse_args(arguments)
    try:
        config, changes = resolve(compose_or_resume(options.overrides))
        errors = [v for v in check(config, scopes=(Scope.static,)) if v.severity is Severity.error]
        if errors:
            print(text_report(False, changes, errors, []))
            return 2
        plan = build_plan(config)
    except ConfigError as error:
        print(error)
        return 2
    if options.format == "json":
        print(json.dumps(asdict(plan), indent=1))
    else:
        show(plan)
    return 0


def show(plan: Plan) -> None:
    """Print the plan for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for column in columns:
            made.add_column(column)
        return made

    roles = table(f"{plan.name} ({plan.mode})", "role", "processes", "devices", "layout")
    for role in plan.roles:
        roles.add_row(role.name, str(role.processes), role.gpus, role.layout)
    batch = table("batch", "quantity", "value")
    for name, value in plan.batch.items():
        batch.add_row(name, str(value))
    work = table("work a rollout, at the longest responses (estimate)", "phase", "tokens", "TFLOP", "GB")
    for row in plan.work:
        work.add_row(row["phase"], f"{row['tokens']:,}", f"{row['flops'] / 1e12:.3g}", f"{row['bytes'] / 1e9:.3g}")
    memory = table("memory of a trainer rank (estimate)", "part", "GiB")
    for name, value in plan.memory.items():
        memory.add_row(name, f"{value / 2**30:.3g}")
    for part in (roles, batch, work, memory):
        console.print(part)
        console.print()
    for name, values in [*plan.megatron.items(), ("SGLang ServerArgs", plan.sglang)]:
        if values:
            arguments = table(name, "argument", "value")
            for key, value in values.items():
                arguments.add_row(key, str(value))
            console.print(arguments)
            console.print()


if __name__ == "__main__":
    sys.exit(main())
