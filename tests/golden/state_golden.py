#!/usr/bin/env python3
"""Saved states, version 1, written from ps/STATE.md alone: the golden bytes of tests/ps/state_test.cc.

    state_golden.py          write state_golden.json beside this file

Needs Python 3.9 and nothing else. The bytes change only with the format's version, or with the fields of Job.
"""
import hashlib
import json
import os
import struct


def blake(data):
    return hashlib.blake2b(data, digest_size=32).digest()


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


JOB = {
    "tensors": [{"name": "w", "elems": 2, "layer": 0, "decay": True}],
    "segment_bytes": 65536, "window_bytes": 262144,
    "codec": "none", "fec_auto": False, "fec_threshold": -7, "fec_density": 0.02, "fec_runs_layout": False,
    "fec_rounding": "nearest", "seed": 1, "error_feedback": True, "two_bit_threshold": 0.5, "reply": "raw",
    "fec_reply_threshold": -9, "schedule": "preemptive", "sync": "bsp", "optimizer": "sgd", "lr": single(0.05),
    "lr_schedule": "cosine", "lr_total_steps": 300, "lr_warmup_steps": 0, "lr_step_every": 0, "lr_gamma": single(0.1),
    "momentum": single(0.9), "weight_decay": 0.0, "nonfinite_limit": 10,
}


def state(job_text, role, rank, body):
    head = b"GLSTATE\n" + struct.pack("<6I", 1, role, rank, 2, 1, 0) + blake(job_text.encode()) + struct.pack("<Q", len(body))
    return head + body + blake(head + body)


def case(changes, worker, server):
    text = json.dumps({**JOB, **changes}, sort_keys=True, separators=(",", ":"))
    return {"job": text, "worker": state(text, 1, 0, worker).hex(), "server": state(text, 2, 0, server).hex()}


def main():
    steering = struct.pack("<4dI", -7.25, 0.015625, 0.5, 1.5, 24)
    params = struct.pack("<2f", 1, -2)
    residual = struct.pack("<2f", 0.5, -0.25)
    steps = struct.pack("<Q", 270)
    cases = [
        # The example of STATE.md.
        case({}, steps + params,
             2 * steps + struct.pack("<QIII", 268, 2, 0, 0) + params + struct.pack("<2f", 3, 4)),
        case({"codec": "fec", "reply": "fec", "fec_auto": True, "optimizer": "adam"},
             steps + params + residual + steering,
             2 * steps + struct.pack("<QIII", 270, 0, 0, 0) + steering + params + struct.pack("<6f", 3, 4, 5, 6, 1, -2)),
        case({"codec": "auto", "sync": "ssp:3"},
             steps + params + residual + b"\1" + struct.pack("<Q4d", 21, 3.5, 1.25, 0.5, 40) +
             struct.pack("<4dQQB", 3.5, 1.25, 0.5, 0, 20, 2, 1),
             steps + struct.pack("<Q", 268) + struct.pack("<QIII", 535, 0, 3, 0) + params + struct.pack("<2f", 3, 4)),
    ]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "state_golden.json"), "w") as out:
        json.dump(cases, out, indent=1)
        out.write("\n")
    print(len(cases), "states of a worker and a server")


if __name__ == "__main__":
    main()
