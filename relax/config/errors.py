"""Errors a person can act on. The entry points print them without a traceback and exit 2."""

from __future__ import annotations


class RunFailedError(RuntimeError):
    """A run that had started failed; the message is what a person needs, the traceback is in the run directory."""


class ConfigError(ValueError):
    """Something in the config is wrong; the message names the option, the value, what is allowed and the fix."""
