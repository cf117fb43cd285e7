#!/usr/bin/env python3
"""Records what NeMo Gym 0.7.0 logs to MLflow and W&B for the rollouts of a simulated agent, as `gym_series.json`.

    VENV/bin/python tests/trackers/record.py target/debug/rollstream > tests/trackers/gym_series.json

VENV has nemo-gym 0.7.0. The tests run rollstream on the same agent and expect the same series.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).absolute().parent
BIN = Path(sys.executable).parent
ROLLSTREAM = Path(sys.argv[1]).absolute()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def main(folder):
    tasks = [
        {"responses_create_params": {"input": [{"role": "user", "content": f"What is {n} + {n + 1}?"}]}, "expected_answer": 2 * n + 1}
        for n in range(1, 26)
    ]
    named = ({**task, "agent_ref": {"name": "math"}} for task in tasks)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in named))
    sim = [ROLLSTREAM, "sim", "--port", "0", "--json", "--gym", "0.7", "--agents", "math", "--latency", "fixed:0ms"]
    sim = subprocess.Popen(sim, stdout=subprocess.PIPE, text=True)
    head = int(json.loads(sim.stdout.readline())["head_server"].rsplit(":", 1)[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = [BIN / "python", "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    server += ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "./artifacts"]
    with open(folder / "mlflow.log", "w") as log:
        server = subprocess.Popen(server, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health")
                break
            except OSError:
                time.sleep(0.2)
        keys = ["input_jsonl_fpath=tasks.jsonl", "output_jsonl_fpath=r.jsonl", "num_repeats=4", "num_samples_in_parallel=1"]
        keys += ["head_server.host=127.0.0.1", f"head_server.port={head}", f"mlflow_tracking_uri={url}"]
        keys += ["mlflow_experiment_name=e", "mlflow_run_name=r", "wandb_project=p", "wandb_name=r"]
        keys += ["wandb_api_key=" + "0" * 40, f"results_dir={folder}"]
        gym = [BIN / "gym", "eval", "run", "--no-serve", *(f"+{key}" for key in keys)]
        environment = {**os.environ, "WANDB_MODE": "offline"}
        subprocess.run(gym, cwd=folder, check=True, env=environment, stdout=sys.stderr)
        found = post(f"{url}/api/2.0/mlflow/runs/search", {"experiment_ids": ["1"]})["runs"][0]
        run_id = found["info"]["run_id"]
        series = {}
        for metric in sorted(metric["key"] for metric in found["data"]["metrics"]):
            query = f"run_id={run_id}&metric_key={urllib.parse.quote(metric)}&max_results=1000"
            history = json.load(urllib.request.urlopen(f"{url}/api/2.0/mlflow/metrics/get-history?{query}"))
            series[metric] = [[point.get("step", 0), point["value"]] for point in history["metrics"]]
        tags = {tag["key"]: tag["value"] for tag in found["data"]["tags"]}
    finally:
        os.killpg(server.pid, 9)
        sim.terminate()
    records = [sys.executable, HERE / "wandb_records.py", folder / "wandb"]
    lines = subprocess.run(records, check=True, capture_output=True, text=True).stdout.splitlines()
    history = [record["history"] for record in map(json.loads, lines) if "history" in record]
    rows = len((folder / "r.jsonl").read_text().splitlines())
    # Time differs from run to run, and so does what the package says of a table's file.
    del series["progress/total/rollouts_per_min"]
    is_same = re.compile("(?!_timestamp|_runtime|progress/total/|Rollouts)").match
    history = [{key: value for key, value in record.items() if is_same(key)} for record in history]
    print(json.dumps({"rollouts": rows, "mlflow": series, "tags": tags, "wandb": history}))


with tempfile.TemporaryDirectory() as folder:
    main(Path(folder))
