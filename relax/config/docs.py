"""`python -m relax.config.docs [--check] [--output docs]`: the reference pages, written from the declarations.

`config.md` comes from the dataclasses (their attribute docstrings are read from the source, since they do not exist at
run time), `rules.md` from the declared rules, `perf.md` from the toggles. The same declarations give the same bytes.

Exit codes: 0 the pages are written (with --check: up to date), 1 --check found stale pages and printed the difference.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from relax.config.compose import ALGORITHMS
from relax.config.rules import RULES, Rule
from relax.config.schema import AlgorithmConfig, ArchConfig, EvalSetConfig, RunConfig
from relax.config.toggles import TOGGLES, Toggle

COMMAND = "python -m relax.config.docs"
"""What writes the pages; they name it, and so does the message about a stale page."""

HEADER = f"<!-- written by `{COMMAND}`; change the code, not this file -->"
"""First line of every page."""

INSIDE: dict[str, tuple[str, type[Any]]] = {
    "model.arch": ("model.arch.", ArchConfig),
    "eval.sets": ("eval.sets.<name>.", EvalSetConfig),
}
"""Fields whose default object does not show the keys they can hold: prefix and type of these keys."""


@dataclass(frozen=True)
class Key:
    """One key of the config, as a row of the page."""

    path: str
    kind: str
    """Its type, for a reader."""
    default: str
    text: str
    """Its docstring; empty when it has none."""


def field_docstrings(schema: type[Any]) -> dict[str, str]:
    """The string under each field of a dataclass and of its bases, by field name."""
    found: dict[str, str] = {}
    for owner in reversed(schema.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        body = _class_bodies(inspect.getsourcefile(owner) or "")[owner.__name__]
        for field, below in itertools.pairwise(body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = _one_line(str(below.value.value))
    return found


@functools.cache
def _class_bodies(source: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(Path(source).read_text(encoding="utf-8"))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def keys_of(config: Any, prefix: str = "") -> Iterator[Key]:
    """Every key under a config object that holds a value of its own, in the order of the fields."""
    schema: type[Any] = type(config)
    hints, texts = typing.get_type_hints(schema), field_docstrings(schema)
    for field in dataclasses.fields(config):
        path, value = f"{prefix}{field.name}", vars(config)[field.name]
        if dataclasses.is_dataclass(value):
            yield from keys_of(value, f"{path}.")
            continue
        yield Key(path, type_text(hints[field.name]), value_text(value), texts.get(field.name, ""))
        if path in INSIDE:
            inner_prefix, inner = INSIDE[path]
            yield from keys_of(inner(), inner_prefix)


def type_text(hint: Any) -> str:
    """A type for a reader: the values of an enum, `int, or null`, `list` …"""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [type_text(item) for item in typing.get_args(hint) if item is not type(None)]
        return f"{', or '.join(inner)}, or null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(f"`{member.value}`" for member in hint)
    container = {dict: "mapping", list: "list"}.get(typing.get_origin(hint) or hint)
    return container or {str: "text", bool: "true | false"}.get(hint, hint.__name__)


def value_text(value: Any) -> str:
    """A default as a person would type it."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def config_page() -> str:
    """Every key, its type, its default and its docstring, a section a group."""
    config = RunConfig()
    lines = [
        HEADER,
        "# Config keys",
        "Every key of a run, its type and its default. Set one with `key=value` behind `python -m relax.train`. An\n"
        "option of a group (`conf/<group>/`) or a recipe (`conf/experiment/`) may depart from a default;\n"
        "`python -m relax.train --cfg job` prints what a command line composes.",
    ]
    keys = list(keys_of(config))
    lines += ["## top level", _keys_table(key for key in keys if "." not in key.path)]
    for field in dataclasses.fields(config):
        value = vars(config)[field.name]
        if dataclasses.is_dataclass(value):
            inside = _keys_table(key for key in keys if key.path.startswith(f"{field.name}."))
            lines += [f"## {field.name}", _docstring(type(value)), inside]
            if field.name == "algorithm":
                lines += _algorithm_sections()
    return _page(lines)


def _algorithm_sections() -> list[str]:
    """A section for each algorithm that has keys beyond those of the one it extends."""
    names = {schema: name for name, schema in ALGORITHMS.items()}
    lines: list[str] = []
    for name, schema in ALGORITHMS.items():
        base = next(item for item in schema.__mro__[1:] if item in names or item is AlgorithmConfig)
        inherited = {key.path for key in keys_of(base(), "algorithm.")}
        further = [key for key in keys_of(schema(), "algorithm.") if key.path not in inherited]
        if further:
            above = f"the keys of `algorithm={names[base]}`" if base in names else "the keys above"
            sentence = f"{_docstring(schema)} Beside {above}:"
            lines += [f"### algorithm={name}", sentence, _keys_table(further)]
    return lines


def rules_page() -> str:
    """Every declared rule, a section a topic."""
    lines = [
        HEADER,
        "# Rules",
        "What `python -m relax.check` looks at. All violations are reported together, each with its fix.",
        "*severity*: an `error` stops the run before anything starts, a `warning` is printed. *scope*: `static`\n"
        "rules read the config alone, `files` also the files it names; `devices` rules look at this machine and run\n"
        "only when a run starts.",
    ]
    topics: dict[str, list[Rule]] = {}
    for declared in RULES.values():
        topics.setdefault(declared.id.split(".")[0], []).append(declared)
    for topic, rules in topics.items():
        rows = [[f"`{r.id}`", r.severity.value, r.scope.value, _codes(r.reads), _docstring(r.function)] for r in rules]
        lines += [f"## {topic}", _table(["rule", "severity", "scope", "reads", "says"], rows)]
    return _page(lines)


def perf_page() -> str:
    """Every performance toggle: what it does, requires and changes."""
    lines = [
        HEADER,
        "# Performance toggles",
        "Each is one option, off by default: `+perf=skip_zero_adv`, or several: `+perf=[skip_zero_adv,…]`.\n"
        "`+perf=baseline` is the empty one, for sweeps.",
    ]
    for toggle in TOGGLES.values():
        lines += _toggle_section(toggle)
    return _page(lines)


def _toggle_section(toggle: Toggle) -> list[str]:
    rows = [[f"`{c.path}`", c.required, c.why] for c in toggle.requires]
    return [
        f"## {toggle.name}",
        toggle.summary,
        f"*Equality:* {toggle.equality.value}.",
        f"*Changes:* {_codes(toggle.metrics)}, and times.",
        _table(["requires", "value", "because"], rows),
    ]


PAGES: dict[str, Callable[[], str]] = {"config.md": config_page, "rules.md": rules_page, "perf.md": perf_page}
"""Builder of each generated page, by file name."""


def _docstring(item: Any) -> str:
    return _one_line(inspect.getdoc(item) or "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _keys_table(keys: Iterable[Key]) -> str:
    rows = [[f"`{key.path}`", key.kind, f"`{key.default}`", key.text] for key in keys]
    return _table(["key", "type", "default", "meaning"], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    cells = [header, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def _page(blocks: list[str]) -> str:
    return "\n\n".join(blocks) + "\n"


def stale_difference(folder: Path, name: str, wanted: str) -> str:
    """Unified diff from the file to what it should say; empty when it is up to date."""
    path = folder / name
    found = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), f"{name} (file)", f"{name} (code)")
    return "".join(lines)


def write_page(folder: Path, name: str, content: str) -> None:
    """Write a page at once: a temporary file beside it, then a rename."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.tmp-{os.getpid()}"
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; print what is stale and exit 1")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="folder of the pages (docs)")
    options = parser.parse_args(arguments)
    pages = {name: build() for name, build in PAGES.items()}
    if options.check:
        difference = "".join(stale_difference(options.output, name, page) for name, page in pages.items())
        print(difference, end="")
        return 1 if difference else 0
    for name, page in pages.items():
        write_page(options.output, name, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
