"""Logs to one W&B run. Reads commands from standard input, a JSON object a line, and answers each with one."""

import hashlib
import json
import mmap
import os
import shutil
import sys

# Whatever the package prints goes elsewhere.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

KEY, COLUMN = "Rollouts", "Rollout"
run = None


def start(command):
    global run
    import wandb

    run = wandb.init(
        project=command["project"],
        name=command["name"],
        id=command["id"],
        dir=command["dir"],
        resume="allow",
        settings=wandb.Settings(console="off", silent=True),
    )
    return {"url": run.url}


def config(command):
    run.config.update(command["config"], allow_val_change=True)


def log(command):
    run.log(command["metrics"], step=command["step"], commit=True)


def table(command):
    """Logs a file as the package logs a `Table`, which would read it into memory, and cut it."""
    digest = hashlib.sha256()
    with open(command["path"], "rb") as rows:
        while piece := rows.read(1 << 20):
            digest.update(piece)
    path = f"media/table/{KEY}_{run.step}_{digest.hexdigest()[:20]}.table.json"
    copy = os.path.join(run.dir, path)
    os.makedirs(os.path.dirname(copy), exist_ok=True)
    shutil.copyfile(command["path"], copy)
    run.save(copy, base_path=run.dir, policy="now")
    described = {
        "_type": "table-file",
        "sha256": digest.hexdigest(),
        "size": os.path.getsize(copy),
        "path": path,
        "ncols": 1,
        "nrows": command["rows"],
        "log_mode": "IMMUTABLE",
    }
    run.log({KEY: {**described, **artifact(command["path"], command["rows"])}})


def artifact(path, count):
    """Logs the table as an artifact, too. Its class has no public name; without it, there is only the file."""
    try:
        from wandb.sdk.artifacts._internal_artifact import InternalArtifact
    except ImportError:
        return {}
    # The package maps the whole file to hash it, unless it cannot. Then it reads one piece after the other.
    mmap.mmap = refuse
    made = InternalArtifact(f"run-{run.id}-{KEY}", "run_table")
    types = {"wb_type": "typedDict", "params": {"type_map": {COLUMN: {"wb_type": "string"}}}}
    head = {"_type": "table", "column_types": types, "log_mode": "IMMUTABLE", "ncols": 1, "nrows": count}
    name = f"{KEY}.table.json"
    with open(path, "rb") as rows, made.new_file(name, mode="wb") as file:
        # One object of both.
        file.write(json.dumps(head).encode()[:-1] + b",")
        rows.seek(1)
        shutil.copyfileobj(rows, file)
    run.log_artifact(made)
    scheme = "wandb-client-artifact://"
    return {
        "artifact_path": f"{scheme}{made._client_id}/{name}",
        "_latest_artifact_path": f"{scheme}{made._sequence_client_id}:latest/{name}",
    }


def refuse(*_, **__):
    raise OSError("not mapped")


def finish(command):
    run.finish(exit_code=command["exit_code"])


COMMANDS = {"start": start, "config": config, "log": log, "table": table, "finish": finish}

for line in sys.stdin:
    command = json.loads(line)
    try:
        answer = COMMANDS[command["do"]](command) or {}
    except ImportError as error:
        answer = {"missing": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)
# Whoever gave the commands has gone: what was logged is left to the package's own service.
os._exit(0)
