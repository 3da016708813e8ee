"""`python -m relax.rewards.math_worker`: one process that grades with math-verify, one JSON line in, one out.

It runs apart from the run's own processes because symbolic simplification can hang, and only a process can be stopped
for certain. math-verify's own time-outs use signals, which work in the main thread only; the pool bounds the time.
"""

from __future__ import annotations

import json
import logging
import math
import re
import signal
import sys

ORPHAN_GRACE_SECONDS = 5
"""Time that the pool has to stop a late worker before it stops itself."""
_PLAIN_NUMBER = re.compile(r"\s*[-+]?\$?\s*[-+]?[\d,]*\.?\d+\s*")


def grade(label: str, response: str) -> bool | None:
    """Whether the answer in `response` (the boxed one, else the last expression) equals `label`.

    None: `label` itself is no expression that math-verify reads.
    """
    from math_verify import parse, verify

    gold = parse(label if _PLAIN_NUMBER.fullmatch(label) else f"\\boxed{{{label}}}", parsing_timeout=None)
    if not gold:
        gold = parse(label, parsing_timeout=None)
    if not gold:
        return None
    answer = parse(response, parsing_timeout=None)
    return bool(answer) and bool(verify(gold, answer, timeout_seconds=None))


def main() -> None:
    """Serve until stdin closes. The first line out is `ready`."""
    logging.disable(logging.WARNING)  # math-verify warns on each call that its time-outs are off
    grade("1", "1")  # import and build the grammars before saying ready
    print("ready", flush=True)
    for line in sys.stdin:
        label, response, timeout_seconds = json.loads(line)
        # The pool kills a worker that is late. Should the pool itself be gone, the default action of SIGALRM ends this
        # process even inside C code, so that no orphan computes for ever.
        signal.alarm(math.ceil(timeout_seconds) + ORPHAN_GRACE_SECONDS)
        verdict = grade(label, response)
        signal.alarm(0)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
