"""Checks that TensorBoard's own reader finds in event files what log.jsonl has.

    python tests/tensorboard_reader.py OUTPUT_DIR [EVENTS_DIR]

OUTPUT_DIR is that of a run with --report_to tensorboard; EVENTS_DIR its --logging_dir, else the newest directory below OUTPUT_DIR/runs.
A killed run's last record may be in log.jsonl only.
"""

import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def add(values, step, value):
    """One more value of a step, unless it is the one before: the epoch stands in records of training and of evaluation. The last step may
    be evaluated twice, as the schedule says and at the end."""
    of_step = values.setdefault(step, [])
    if not of_step or of_step[-1] != value:
        of_step.append(value)


def main():
    output = Path(sys.argv[1])
    runs = sorted((output / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
    events = Path(sys.argv[2]) if len(sys.argv) > 2 else runs[-1]
    expected = {}
    for line in (output / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        step = record.pop("step")
        for key, value in record.items():
            tag = "eval/" + key[5:] if key.startswith("eval_") else "train/" + key
            value = float("nan") if value is None else value
            add(expected.setdefault(tag, {}), step, struct.unpack("f", struct.pack("f", value))[0])
    reader = EventAccumulator(str(events), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    found = {tag: {} for tag in reader.Tags()["scalars"]}
    for tag, values in found.items():
        for event in reader.Scalars(tag):
            add(values, event.step, event.value)
    last = max(step for values in found.values() for step in values)
    logged = max(step for values in expected.values() for step in values)
    assert logged - last <= 1, f"the events end at step {last}, the log at {logged}"
    shortened = {tag: {s: v for s, v in values.items() if s <= last} for tag, values in expected.items()}
    shortened = {tag: values for tag, values in shortened.items() if values}
    assert found == shortened, f"{found}\n{shortened}"
    texts = {}
    for tag in reader.Tags()["tensors"]:
        if tag.endswith("/text_summary"):
            texts[tag.split("/")[0]] = json.loads(reader.Tensors(tag)[-1].tensor_proto.string_val[0])
    assert set(texts) == {"args", "model_config"}, texts
    hparams = reader.PluginTagToContent("hparams")
    assert "_hparams_/session_start_info" in hparams, hparams
    print(f"{len(found)} tags, {sum(map(len, found.values()))} values to step {last} as in log.jsonl; "
          f"texts {sorted(texts)}; {len(texts['args'])} hyperparameters")


main()
