"""Writes tests/data/torch: files of torch.save for src/checkpoint/torch_tests.rs.

usage: make_torch.py DIRECTORY (torch 2.15 wrote those of the repository)
"""
import collections
import os
import sys

import torch

out = sys.argv[1]
os.makedirs(out, exist_ok=True)


def numbers(*sizes):
    return torch.arange(1, 1 + torch.Size(sizes).numel(), dtype=torch.float32).reshape(sizes)


base = numbers(2, 3)
state = collections.OrderedDict(
    [
        ("a.weight", base),
        ("tied", base),
        ("half", base.half()),
        ("brain", base.bfloat16()),
        ("view", torch.arange(8, dtype=torch.float32)[2:6]),
        ("ids", torch.tensor([7, 8])),
        ("flag", torch.tensor([True, False])),
        ("scalar", torch.tensor(2.5)),
        ("param", torch.nn.Parameter(numbers(2))),
    ]
)
state._metadata = {"": {"version": 1}}
torch.save(state, f"{out}/zip.bin")
torch.save(state, f"{out}/old.bin", _use_new_zipfile_serialization=False)
torch.save(state, f"{out}/four.bin", pickle_protocol=4)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch owned",)


torch.save({"a": Hostile()}, f"{out}/evil.bin")
torch.save({"a": Hostile()}, f"{out}/evil_old.bin", _use_new_zipfile_serialization=False)
torch.save({"t": base.t(), "turned twice": numbers(2, 3, 4).permute(2, 0, 1), "part": numbers(4, 3)[::2, 1:]}, f"{out}/turned.bin")
torch.save({"epoch": 3, "state_dict": {"t": base.t()}}, f"{out}/wrapped.bin")
torch.save({"epoch": 3, "state_dict": {"t": base.t()}}, f"{out}/wrapped_old.bin", _use_new_zipfile_serialization=False)
torch.save({"t": torch.ones(1).expand(3)}, f"{out}/repeated.bin")
torch.save({"epoch": 3, "model": state}, f"{out}/nested.bin")
