#!/usr/bin/env python3
"""Records what NeMo Gym 0.7.0 logs to MLflow and W&B for the rollouts of a simulated agent, as `gym_series.json`: once where
all goes well, once where samples are masked and rollouts fail, and once where NeMo Gym itself chooses the key metrics.

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


# NeMo Gym's program, where the agent's server has NeMo Gym's own metrics: alone, or beside those of the simulated one,
# which then chooses the key metrics.
GYM = """
import os

from nemo_gym import reward_profile, rollout_collection
from nemo_gym.cli.main import main

asked = []

class Request(rollout_collection.AggregateMetricsRequest):
    def __init__(self, verify_responses):
        asked.extend(verify_responses)
        super().__init__(verify_responses=verify_responses)

class Metrics(rollout_collection.AggregateMetrics):
    @classmethod
    def model_validate(cls, answer):
        own = reward_profile.compute_aggregate_metrics(asked)
        if "OWN_CHOICE" in os.environ:
            return own
        own.agent_metrics = {**answer["agent_metrics"], **own.agent_metrics}
        coverage = {key: own.key_metrics[key] for key in own.key_metrics if key.startswith("coverage/")}
        own.key_metrics = {**coverage, **answer["key_metrics"]}
        return own

rollout_collection.AggregateMetricsRequest = Request
rollout_collection.AggregateMetrics = Metrics
main()
"""

# The tests have the same.
MASKED = (4, 12, 13)
FAULTS = "2:1=failure_class 6=failure_terminal 9:0=error_500 15:2=no_persist"


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def record(folder, name):
    is_lossy = name == "lossy"
    tasks = [
        {"responses_create_params": {"input": [{"role": "user", "content": f"What is {n} + {n + 1}?"}]}, "expected_answer": 2 * n + 1}
        for n in range(1, 26)
    ]
    for index in () if name == "healthy" else MASKED:
        tasks[index]["mask_sample"] = True
    named = ({**task, "agent_ref": {"name": "math"}} for task in tasks)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in named))
    sim = [ROLLSTREAM, "sim", "--port", "0", "--json", "--gym", "0.7", "--agents", "math", "--latency", "fixed:0ms"]
    for fault in FAULTS.split() if is_lossy else ():
        sim += ["--fault-at", fault]
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
        keys += ["route_failures_to_sidecar=true", "count_missing_rollouts_as_zero=true"] if is_lossy else []
        gym = [sys.executable, "-c", GYM, "eval", "run", "--no-serve", *(f"+{key}" for key in keys)]
        environment = {**os.environ, "WANDB_MODE": "offline"}
        if name == "own choice":
            environment["OWN_CHOICE"] = "1"
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
    # Time differs from run to run, and so do the names and sums of files.
    rate = "progress/total/rollouts_per_min"
    series[rate] = [[step, None] for step, _ in series[rate]]
    is_same = re.compile("(?!_timestamp|_runtime|progress/total/|Rollouts.(path|sha256|size))").match
    history = [{key: value for key, value in record.items() if is_same(key)} for record in history]
    return {"mlflow": series, "tags": tags, "wandb": history, "table": table_of(folder)}


def table_of(folder):
    """The form of the file with the table of rollouts that W&B gets. NeMo Gym's cells are bytes, which the package writes as
    lists of numbers."""
    (path,) = folder.glob("**/media/table/*.table.json")
    table = json.loads(path.read_text())
    return {"columns": table["columns"], "rows": len(table["data"])}


recorded = {}
for name in ("healthy", "lossy", "own choice"):
    with tempfile.TemporaryDirectory() as folder:
        recorded[name] = record(Path(folder), name)
print(json.dumps(recorded))
