"""Computes again, from the logs alone, what `xtrain report native.log compiled... --price_per_hour P --format json` says.

    python tests/compare_native.py REPORT.json PRICE native.log RUN_DIR...
"""

import ast
import json
import re
import sys
from pathlib import Path


def close(name, found, expected, tolerance=1e-6):
    assert abs(found - expected) <= tolerance * max(1.0, abs(expected)), f"{name}: {found} in the report, {expected} from the log"


def main():
    report, price = json.loads(Path(sys.argv[1]).read_text()), float(sys.argv[2])
    native, *compiled = report["runs"]
    records = [ast.literal_eval(text) for text in re.findall(r"\{'[^}]*\}", Path(sys.argv[3]).read_text())]
    records = [{key: float(value) for key, value in record.items()} for record in records]
    losses = [record["loss"] for record in records if "loss" in record]
    summary = next(record for record in records if "train_runtime" in record)
    close("last loss", native["metrics"]["loss"]["last"], losses[-1])
    close("best loss", native["metrics"]["loss"]["best"], min(losses))
    close("samples/s", native["samples_per_second"], summary["train_samples_per_second"])
    close("billable", native["billable_seconds"], summary["train_runtime"])
    close("cost", native["cost"], summary["train_runtime"] / 3600 * price)
    for run, directory in zip(compiled, map(Path, sys.argv[4:]), strict=True):
        log = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
        losses = [record["loss"] for record in log if "loss" in record]
        summary = next(record for record in log if "train_runtime" in record)
        close("last loss", run["metrics"]["loss"]["last"], losses[-1])
        close("samples/s", run["samples_per_second"], summary["train_samples_per_second"])
        close("FLOPs", run["flops"], summary["total_flos"])
        close("speed-up", run["speedup"], run["samples_per_second"] / native["samples_per_second"])
        events = [json.loads(line) for line in (directory / "telemetry.jsonl").read_text().splitlines()]
        account = [event for event in events if event["event"] == "account"][-1]
        close("wall", run["wall_seconds"], account["wall_seconds"], 1e-3)
        close("parts", sum(run["time"].values()), run["wall_seconds"], 0.02)
        close("cost", run["cost"], run["billable_seconds"] / 3600 * price)
        tokens = [event for event in events if event["event"] == "step"][-1]["total_tokens"]
        close("tokens", run["tokens"], tokens)
        close("cost per million tokens", run["cost_per_million_tokens"], run["cost"] / tokens * 1e6)
    print("every number of the report follows from the logs")


main()
