"""Prints what a W&B run folder of the offline mode holds, a JSON line a record. Usage: wandb_records.py FOLDER."""

import glob
import json
import struct
import sys

import wandb
from google.protobuf.json_format import MessageToDict
from wandb.proto import wandb_internal_pb2

BLOCK = 32768
HEADER = 7


def records(content):
    """The frames are those of LevelDB's log, after a header of 7 bytes."""
    assert content[:4] == b":W&B", content[:7]
    at, whole = HEADER, b""
    while at < len(content):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        whole += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        # Whole, or the last piece.
        if kind in (1, 4):
            yield whole
            whole = b""


for path in sorted(glob.glob(f"{sys.argv[1]}/wandb/offline-run-*/*.wandb")):
    with open(path, "rb") as file:
        content = file.read()
    for text in records(content):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(text)
        kind = record.WhichOneof("record_type")
        found = None
        if kind == "run":
            run = record.run
            found = {"id": run.run_id, "name": run.display_name, "project": run.project, "resume": run.resume}
        elif kind == "config":
            items = record.config.update
            found = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
        elif kind in ("history", "summary"):
            items = record.history.item if kind == "history" else record.summary.update
            found = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
        elif kind == "artifact":
            (file,) = record.artifact.manifest.contents
            # The digests that the package finds.
            made = wandb.Artifact("name", "type")
            entry = made.add_file(file.local_path, file.path, skip_cache=True, policy="immutable")
            found = {**MessageToDict(record.artifact), "computed": [made.digest, entry.digest]}
        elif kind == "exit":
            found = {"exit_code": record.exit.exit_code}
        if found is not None:
            print(json.dumps({kind: found}))
