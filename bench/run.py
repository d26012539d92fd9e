"""Run the benchmarks, each in its own process, and write their ratios to bench/results.json and, as a table, .md.

python bench/run.py                 all of them
python bench/run.py decode swap     only these
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("decode", "capture", "step", "swap")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="benchmarks to run; none: all")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    for name in options.names or NAMES:
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(HERE)}
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")], stdout=subprocess.PIPE, env=env, text=True
        )
        if done.returncode:
            print(f"{name} failed with exit status {done.returncode}", file=sys.stderr)
            return 1
        rows = json.loads(done.stdout.splitlines()[-1])
        kept = [row for row in results["rows"] if row["benchmark"] != name]
        results["rows"] = kept + [{"benchmark": name, **row} for row in rows]
        for row in rows:
            print(
                f"  {row['name']}: {row['ours']:.4g} against {row['other']:.4g} {row['unit']}, "
                f"ratio {row['ratio']:.3f} ({row['better']} is better)"
            )
        print(f"  took {time.monotonic() - began:.0f} s")
        write(results, options.out)
    print(f"written to {options.out}")
    return 0


def write(results: dict[str, Any], out: Path) -> None:
    """After each benchmark, so that an interrupted run keeps what it has measured."""
    results["machine"] = {
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "python": platform.python_version(),
    }
    results["packages"] = {name: version(name) for name in ("torch", "transformers", "peft")}
    results["at"] = time.strftime("%Y-%m-%d")
    out.write_text(json.dumps(results, indent=1) + "\n")
    lines = ["| what | ours | other | ratio | better |", "|---|---|---|---|---|"]
    for row in results["rows"]:
        ours, other = (f"{row[side]:.3g} {row['unit']}" for side in ("ours", "other"))
        lines.append(f"| {row['name']} | {ours} | {other} | {row['ratio']:.2f} | {row['better']} |")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
