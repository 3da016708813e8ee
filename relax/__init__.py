"""Relax: a declarative experiment platform for reinforcement-learning post-training of language models."""
