"""`python -m relax.check [overrides …]`: compose, resolve and check a config, and say everything that is wrong.

Exit codes: 0 the config is valid, 2 it is not. Nothing heavy is imported and nothing is started; what only the start of
a run can see (rows of the data, GPUs of this machine) is checked there.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from relax.config.availability import unavailable
from relax.config.compose import compose_or_resume
from relax.config.errors import ConfigError
from relax.config.resolve import Change, resolve
from relax.config.rules import Scope, Severity, Violation, check


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that `relax.check` and `relax.plan` share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "overrides", nargs="*", help="as for relax.train: group=option, path.to.key=value, +perf=toggle"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text for people, json for machines")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Print the report; the exit code."""
    parser = build_parser(__doc__)
    parser.add_argument(
        "--static", action="store_true", help="look at the config alone, not at the files and folders it names"
    )
    options = parser.parse_args(arguments)
    scopes = (Scope.static,) if options.static else (Scope.static, Scope.files)
    try:
        config, changes = resolve(compose_or_resume(options.overrides))
    except ConfigError as error:
        if options.format == "json":
            print(json.dumps({"valid": False, "error": str(error), "changes": [], "violations": []}))
        else:
            print(error)
        return 2
    violations = check(config, scopes=scopes)
    notes = list(unavailable(config))
    valid = all(violation.severity is not Severity.error for violation in violations)
    if options.format == "json":
        print(json.dumps(report(valid, changes, violations, notes), indent=1))
    else:
        print(text_report(valid, changes, violations, notes))
    return 0 if valid else 2


def report(valid: bool, changes: list[Change], violations: list[Violation], notes: list[str]) -> dict[str, Any]:
    """The result as plain values."""
    return {
        "valid": valid,
        "changes": [asdict(change) for change in changes],
        "unavailable": notes,
        "violations": [{**asdict(violation), "severity": violation.severity.value} for violation in violations],
    }


def text_report(valid: bool, changes: list[Change], violations: list[Violation], notes: list[str]) -> str:
    """The result for a person: derived values, violations, what cannot run yet, verdict."""
    lines = [f"resolved {change}" for change in changes]
    lines += [str(violation) for violation in violations]
    lines += [f"note: relax.train cannot run it yet: {note}" for note in notes]
    errors = sum(violation.severity is Severity.error for violation in violations)
    warnings = len(violations) - errors
    suffix = f" ({warnings} warning{'s' if warnings > 1 else ''})" if warnings else ""
    lines.append(f"valid{suffix}" if valid else f"{errors} error{'s' if errors > 1 else ''}{suffix}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
