"""The machinery of rules: what a violation says, and how rules are declared and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from relax.config.schema import RunConfig


class Severity(Enum):
    """An error stops the run before anything starts; a warning is printed."""

    error = "error"
    warning = "warning"


class Scope(Enum):
    """What a rule looks at: the config alone, files it names, or this machine's devices."""

    static = "static"
    files = "files"
    devices = "devices"


@dataclass(frozen=True)
class Finding:
    """What a rule found: the rule's own declaration adds id and severity.

    `fix` is overrides that remove the violation; a remark may follow in parentheses.
    """

    path: str
    found: Any
    required: str
    why: str
    fix: str


@dataclass(frozen=True)
class Violation:
    """One broken rule, with all a person needs to mend it."""

    rule: str
    severity: Severity
    path: str
    found: str
    required: str
    why: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.severity.value}: {self.path} = {self.found}\n"
            f"  required: {self.required}\n  why: {self.why}\n  fix: {self.fix}  [{self.rule}]"
        )


RuleFunction = Callable[[RunConfig], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """A declared rule."""

    id: str
    severity: Severity
    scope: Scope
    reads: tuple[str, ...]
    function: RuleFunction

    def violations(self, config: RunConfig) -> Iterator[Violation]:
        """What the rule finds in `config`."""
        for finding in self.function(config):
            yield Violation(
                rule=self.id,
                severity=self.severity,
                path=finding.path,
                found=str(finding.found),
                required=finding.required,
                why=finding.why,
                fix=finding.fix,
            )


RULES: dict[str, Rule] = {}
"""Every declared rule by id; filled when the topic modules are imported."""


def rule(
    rule_id: str, *reads: str, severity: Severity = Severity.error, scope: Scope = Scope.static
) -> Callable[[RuleFunction], RuleFunction]:
    """Declare a rule.

    Args:
        rule_id: `topic.name`, unique.
        reads: config paths the rule looks at.
        severity: whether a violation stops the run.
        scope: what the rule looks at.
    """

    def declare(function: RuleFunction) -> RuleFunction:
        if rule_id in RULES:
            raise ValueError(f"rule {rule_id} is declared twice")
        RULES[rule_id] = Rule(rule_id, severity, scope, reads, function)
        return function

    return declare
