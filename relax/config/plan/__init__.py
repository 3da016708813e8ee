"""The plan of a run: what would start where, how much work it is, and the exact arguments. Imports nothing heavy."""

from relax.config.plan.build import Plan, build_plan

__all__ = ["Plan", "build_plan"]
