#!/usr/bin/env python3
"""Prints the demo's table from what `dcr --json` said.

    demo/table.py WORK_DIR STEPS

For each step K it reads WORK_DIR/madeK.json (of diff), WORK_DIR/copyK.json (of apply) and the
refits WORK_DIR/refitK-OWNERS.json.
"""

import json
import os
import sys


OWNERS = ["fsdp:8", "tp:4,dp:2"]  # as demo/run.sh refits


def read(directory, name):
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        return json.load(file)


def main(argv):
    if len(argv) != 3:
        print(f"usage: {argv[0]} WORK_DIR STEPS", file=sys.stderr)
        return 2
    work, steps = argv[1], int(argv[2])
    model_bytes = os.path.getsize(os.path.join(work, "step0", "model.safetensors"))
    rows = [
        ["step", "changed", "rate", "delta", "of file", "bits/change", "diff", "apply"]
        + [f"refit {owners}" for owners in OWNERS]
    ]
    total = receivers = compared = 0
    for step in range(1, steps + 1):
        made, copy = read(work, f"made{step}.json"), read(work, f"copy{step}.json")
        total += made["delta_bytes"]
        bits = made["bits_per_change"]
        rows.append(
            [
                f"{step}",
                f"{made['changed']:,}",
                f"{100 * made['change_rate']:.3f} %",
                f"{made['delta_bytes'] / 1e3:,.0f} kB",
                f"{100 * made['delta_bytes'] / model_bytes:.2f} %",
                "-" if bits is None else f"{bits:.2f}",
                f"{made['seconds']:.2f} s",
                f"{copy['seconds']:.2f} s",
            ]
        )
        for owners in OWNERS:
            refit = read(work, f"refit{step}-{owners}.json")
            receivers, compared = refit["receivers"], compared + refit["compared_bytes"]
            rows[-1].append(f"{refit['payload_bytes'] / 1e3:,.0f} kB")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
    print(
        f"\n{steps} training steps of a model of {model_bytes / 1e6:.1f} MB"
        f" ({made['elements']:,} elements in {made['tensors']} tensors): {total / 1e6:.2f} MB of"
        f" deltas instead of {steps * model_bytes / 1e6:.0f} MB of copies,"
        f" {steps * model_bytes / total:.0f} times less.\n"
        "Every checkpoint came out equal, file for file and bit for bit;"
        f" {receivers} receivers, refitted {len(OWNERS) * steps} times,"
        f" equal a dense load in all {compared / 1e6:.0f} MB."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
