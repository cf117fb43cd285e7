#!/usr/bin/env python3
"""A stand-in for NeMo Gym's program: `dataset collate` and `env start` as 0.7.0 has them, without Ray and models.

It writes the files that Gym writes, and starts processes the way Gym does: a head server in this process, servers in
shells below it, and a daemon in a session of its own that ignores SIGTERM, as Ray's may. Configurations are JSON, which
is YAML. The key `stand_in` says what goes wrong.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(port, answers):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.reply()

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            self.reply(json.loads(body))

        def reply(self, body=None):
            status, answer = answers(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


def config_of(overrides):
    """The configuration files, and the overrides over them."""
    given = [override.lstrip("+").split("=", 1) for override in overrides]
    config = {}
    roots = [*os.environ.get("NEMO_GYM_EXTRA_ROOTS", "").split(":"), ""]
    for key, value in given:
        if key == "config_paths":
            for path in value.strip("[]").split(","):
                places = (os.path.join(root, path) for root in roots)
                with open(next(place for place in places if os.path.exists(place))) as file:
                    config.update(json.load(file))
    for key, value in given:
        *parents, last = key.split(".")
        below = config
        for parent in parents:
            below = below.setdefault(parent, {})
        try:
            below[last] = json.loads(value)
        except ValueError:
            below[last] = value.strip("'")
    return config


def datasets(config):
    for name, server in config.items():
        if isinstance(server, dict):
            for kind in server.values():
                if isinstance(kind, dict):
                    for implementation in kind.values():
                        if isinstance(implementation, dict):
                            for dataset in implementation.get("datasets", []):
                                yield name, dataset


def collate(config):
    fault = config.get("stand_in", {}).get("collate")
    if fault == "fails":
        print("ValueError: row 3 has no responses_create_params", flush=True)
        sys.exit(1)
    if fault == "hangs":
        time.sleep(3600)
    assert config["mode"] == "train_preparation" and config["should_download"] is True
    os.makedirs(config["output_dirpath"], exist_ok=True)
    for source, dataset in datasets(config):
        if dataset["type"] == "example":
            continue
        out = os.path.join(config["output_dirpath"], dataset["type"])
        with open(dataset["jsonl_fpath"]) as rows, open(out + ".jsonl", "w") as target:
            for line in rows:
                row = json.loads(line)
                row.pop("agent_ref", None)
                row["task_source"] = source
                target.write(json.dumps(row) + "\n")
        with open(out + "_metrics.json", "w") as target:
            json.dump({"name": dataset["name"]}, target)


def agent(config, name):
    """One server: an agent, or the environment server before it."""
    fault = config.get("stand_in", {}).get(name)
    if fault == "dies":
        print(f"ImportError: {name} needs a library; the key is {config.get('policy_api_key')}", flush=True)
        sys.exit(3)
    rows = 0

    def answer(path, body):
        nonlocal rows
        if path == "/run":
            rows += 1
            if fault == "hangs":
                time.sleep(3600)
            if fault == "dies_later" and rows > 2:
                print(f"MemoryError: {name} is full", flush=True)
                os._exit(9)
            return 200, {**body, "reward": 1.0, "response": {"output": [], "model": config.get("policy_model_name")}}
        if path == "/aggregate_metrics":
            return 404, {"detail": "Not Found"}
        return 200, {"status": "ok"}

    serve(server_of(config, name)["port"], answer).serve_forever()


def server_of(config, name):
    return next(iter(next(iter(config[name].values())).values()))


def free_port():
    """A port below those that systems give away by themselves: nobody takes it until its server starts."""
    while listens(port := random.randrange(20000, 32000)):
        pass
    return port


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def start(config):
    names = [
        name
        for name, server in config.items()
        if isinstance(server, dict) and {"responses_api_agents", "environment_servers"} & set(server)
    ]
    processes, instances, ready = {}, [], threading.Event()
    for name in names:
        server = server_of(config, name)
        server.update(host="127.0.0.1", port=free_port())
    head = config["head_server"]
    looks = 0

    def answer(path, _):
        nonlocal looks
        looks += path == "/readyz"
        if path == "/global_config_dict_yaml":
            return 200, json.dumps({key: value for key, value in config.items() if key != "policy_api_key"})
        if path == "/server_instances":
            return 200, instances
        if path == "/readyz" and not ready.is_set():
            return 503, {"status": "starting"}
        return 200, {"status": "ok"}

    head_server = serve(head["port"], answer)
    threading.Thread(target=head_server.serve_forever, daemon=True).start()
    stubborn = config.get("stand_in", {}).get("daemon") == "stubborn"
    action = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else "0"
    daemon = f"import signal, time; {action}; time.sleep(3600)"
    subprocess.Popen(["sh", "-c", f"{sys.executable} -c '{daemon}' {os.getcwd()} & "], start_new_session=True)
    for name in names:
        log = os.path.join(config["nemo_gym_log_dir"], name + ".log")
        command = f"set -o pipefail; ({sys.executable} {sys.argv[0]} server {name} {os.getcwd()}) 2>&1 | tee -a '{log}'"
        environment = {**os.environ, "STAND_IN_CONFIG": json.dumps(config)}
        processes[name] = subprocess.Popen(["/bin/bash", "-c", command], env=environment)
        server = server_of(config, name)
        url = f"http://127.0.0.1:{server['port']}"
        instances.append({"process_name": name, "pid": processes[name].pid, "url": url})
    if config.get("stand_in", {}).get("start") == "hangs":
        time.sleep(3600)
    for name, process in processes.items():
        while not listens(server_of(config, name)["port"]):
            if process.poll() is not None:
                # Gym leaves the other servers behind here.
                raise RuntimeError(f"Process `{name}` finished unexpectedly!")
            time.sleep(0.05)
    if config.get("stand_in", {}).get("start") == "no_model":
        # Gym ends its servers one after the other, and says last why.
        processes[names[0]].kill()
        enough = looks + 3
        while looks < enough:
            time.sleep(0.05)
        for process in processes.values():
            process.kill()
        sys.exit("Error: 1 model endpoint(s) never answered within 600s")
    ready.set()
    signal.pause()


def main():
    command, overrides = sys.argv[1:3], sys.argv[3:]
    if command[0] == "server":
        agent(json.loads(os.environ["STAND_IN_CONFIG"]), command[1])
        return
    with open("gym_calls.txt", "a") as calls:
        shown = [word for word in sys.argv[1:] if "api_key" not in word]
        calls.write(" ".join(shown) + "\n")
    config = config_of(overrides)
    if command == ["dataset", "collate"]:
        collate(config)
    elif command == ["env", "start"]:
        start(config)
    else:
        sys.exit(f"unknown command {command}")


main()
