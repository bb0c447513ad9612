"""`longstride conform`: who agrees with the numeric cases, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from longstride.errors import UsageError

if TYPE_CHECKING:
    from longstride.rl.conformance.checking import Outcome

Found = dict[str, list["Outcome"]]
OURS = "longstride"
_SAID = {
    "agrees": "agrees in",
    "differs": "differs in",
    "fails": "fails in",
    "cannot express": "has no setting for",
}


def conform(arguments: argparse.Namespace) -> int:
    """Check our loss, the target, and installed frameworks; 1 when ours or the target disagrees.

    Raises:
        UsageError: The target is not a function that can be imported.
    """
    # Here, because the command starts without torch.
    import torch

    from longstride.rl.conformance.checking import PEER_TOLERANCE, check_all
    from longstride.rl.conformance.losses import installed_peers, longstride_loss, target

    dtype = torch.float32 if arguments.float32 else torch.float64
    found: Found = {OURS: check_all(longstride_loss, dtype=dtype)}
    if arguments.target:
        sys.path.insert(0, str(Path.cwd()))
        try:
            own = target(arguments.target)
        except ValueError as error:
            raise UsageError(f"--target {error}; name a function that Python can import") from error
        found[arguments.target] = check_all(own, dtype=dtype)
    strict = list(found)
    for name, loss in installed_peers().items():
        limit = None if arguments.float32 else PEER_TOLERANCE
        found[name] = check_all(loss, dtype=dtype, tolerance=limit)
    print(json.dumps(_records(found), indent=1) if arguments.json else _table(found))
    broken = [n for n in strict for o in found[n] if o.status in ("differs", "fails")]
    return 1 if broken else 0


def _records(found: Found) -> dict[str, list[dict[str, object]]]:
    return {
        name: [
            {
                "case": outcome.case.name,
                "status": outcome.status,
                "difference": outcome.difference if math.isfinite(outcome.difference) else None,
                "note": outcome.note,
                "algorithm": outcome.case.settings,
            }
            for outcome in outcomes
        ]
        for name, outcomes in found.items()
    }


def _table(found: Found) -> str:
    widths = {name: max(16, len(name)) for name in found}
    header = "  ".join(f"{name:{width}}" for name, width in widths.items())
    lines = [f"{'case':20}  {header}  what it asks"]
    for place, outcome in enumerate(found[OURS]):
        cells = "  ".join(
            f"{_cell(outcomes[place]):{widths[name]}}" for name, outcomes in found.items()
        )
        lines.append(f"{outcome.case.name:20}  {cells}  {outcome.case.why}")
    lines.append("")
    for name, outcomes in found.items():
        counts = {status: sum(o.status == status for o in outcomes) for status in _SAID}
        said = ", ".join(f"{_SAID[status]} {n}" for status, n in counts.items() if n)
        lines.append(f"{name}: {said}")
        lines += [
            f"  {o.case.name}: {o.note}"
            for o in outcomes
            if o.note and o.status in ("differs", "fails")
        ]
    return "\n".join(lines)


def _cell(outcome: Outcome) -> str:
    if outcome.status == "differs":
        return f"differs {outcome.difference:.1e}"
    return "-" if outcome.status == "cannot express" else str(outcome.status)
