"""Scripted NeMo Gym servers: a head server, environment servers and agents whose answers are known in advance.

Each program under test gets its own, freshly started servers. An answer depends on the rollout and its attempt alone,
so two programs that ask for the same are told the same, in whatever order they ask. `/aggregate_metrics` is computed
by NeMo Gym's own function, as its servers do.
"""

import asyncio
import copy
import json
import os
import random
import signal
import socket

import yaml
from aiohttp import web
from nemo_gym.reward_profile import compute_aggregate_metrics
from tools import write_to

WORDS = ["red", "Grün", "藍", "\u2028", 'quo"te', "tab\t"]


def agent(resources_server="verifier", kind="simple_agent"):
    """The configuration of an agent."""
    reference = {"type": "resources_servers", "name": resources_server}
    return {"responses_api_agents": {kind: {"entrypoint": "app.py", "resources_server": reference}}}


def environment(agent_name, kind="legacy_agent", **fields):
    """The configuration of an environment server in front of an agent."""
    reference = {"type": "responses_api_agents", "name": agent_name}
    return {"environment_servers": {kind: {"entrypoint": "app.py", "agent_server": reference, **fields}}}


def resources(**fields):
    """The configuration of a resources server."""
    return {"resources_servers": {"verifier": {"entrypoint": "app.py", **fields}}}


def servers_of(*agents):
    """A resources server and, for each agent, the environment server that NeMo Gym generates."""
    config = {"verifier": resources()}
    for name in agents:
        config[name] = agent()
        config[f"{name.removesuffix('_agent')}_environment_server"] = environment(name)
    return config


def dice(*parts):
    """Random numbers that depend on `parts` alone."""
    return random.Random("/".join(map(str, parts)))


def scores(task, rollout, agent_name=""):
    """What a verifier could say of a rollout: numbers of all kinds, and gaps."""
    roll = dice(agent_name, task, rollout)
    said = {
        "reward": float(roll.random() < 0.3 + 0.05 * (task % 9)),
        "quality": roll.gauss(0.5, 0.31),
        "tiny": roll.random() * 1e-9,
        "steps": roll.choice([None, *range(1, 9)]),
        # NeMo Gym can't make a histogram of equal numbers that are larger than about 7e13.
        "large": roll.randrange(10**9, 10**12),
        "correct": roll.random() < 0.5,
        "extracted_answer": roll.choice("ABCD"),
        "note": roll.choice(WORDS),
        "components": {"style": roll.random(), "deep": {"x": 1}},
        "_hidden": roll.random(),
        "mask_sample": False,
        "failure_kind": None,
        "ng_perf": {
            "num_turns": roll.randrange(0, 7),
            "token_observability_coverage": roll.choice([0.0, 0.5, 1.0]),
            "prompt_tokens": roll.randrange(5000),
            "completion_tokens": roll.choice([None, roll.randrange(900)]),
            "total_latency_ms": roll.random() * 1000,
        },
    }
    gaps = [name for name in ("quality", "ng_perf") if roll.random() < 0.25]
    return {name: value for name, value in said.items() if name not in gaps}


def response(task, rollout):
    """An OpenAI response, now and then without usage."""
    roll = dice("response", task, rollout)
    text = {"type": "output_text", "text": " ".join(roll.choices(WORDS, k=5)), "annotations": []}
    made = {
        "id": f"resp_{task}_{rollout}",
        "created_at": 1700000000.5,
        "output": [{"type": "message", "role": "assistant", "content": [text]}],
        "incomplete_details": roll.choice([None, {"reason": "max_output_tokens"}]),
    }
    if roll.random() < 0.9:
        given, said = roll.randrange(1, 4000), roll.randrange(900)
        details = {"cached_tokens": given // 2}
        made["usage"] = {"input_tokens": given, "output_tokens": said, "input_tokens_details": details}
    return made


def identity(body):
    """Task index, rollout index and attempt that a request is for."""
    if "episode_id" in body:
        task, rollout = body["episode_id"]["rollout_id"].split("-")
        return int(task), int(rollout), body["episode_id"]["attempt"]
    return body["_ng_task_index"], body["_ng_rollout_index"], body.get("_ng_attempt_index", 0)


def scored(body, task, rollout, **changes):
    """The answer to a request: an agent's is the row, a response and the scores, an episode's is its result."""
    if "episode_id" in body:
        result = {**scores(task, rollout), "response": response(task, rollout), **changes}
        for key in ("ng_perf", "_hidden"):
            result.pop(key, None)
        return {"episode_id": body["episode_id"], "task_id": body["task"]["task_id"], "result": result}
    agent_name = body.get("agent_ref", {}).get("name")
    return {**body, "response": response(task, rollout), **scores(task, rollout, agent_name), **changes}


class Servers:
    """All servers of a configuration in a process of their own, each on a free port, for as long as a block lasts.

    `behaviour` gets the body of a request to POST /run, its task, rollout and attempt, and how often that rollout was
    asked for before. It returns the answer, or a `Fault`. `hooks` are those of a benchmark with metrics of its own.
    """

    def __init__(self, config, behaviour, log, hooks=None):
        self.config = {"head_server": {}} | copy.deepcopy(config)
        self.behaviour, self.log, self.hooks, self.calls = behaviour, log, hooks or {}, {}
        self.sockets = {}
        for name, instance in self.config.items():
            self.sockets[name] = socket.create_server(("127.0.0.1", 0), backlog=4096)
            settings = instance if name == "head_server" else next(iter(next(iter(instance.values())).values()))
            settings |= {"host": "${default_host}", "port": self.sockets[name].getsockname()[1]}
        self.config["default_host"] = "127.0.0.1"
        self.port = self.config["head_server"]["port"]

    def __enter__(self):
        # The sockets listen already, so nobody has to wait for the process.
        self.parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            try:
                write_to(self.log.with_suffix(".log"))
                asyncio.run(self.serve())
            finally:
                os._exit(1)
        for listener in self.sockets.values():
            listener.close()
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)

    async def serve(self):
        for name, listener in self.sockets.items():
            server = web.Application(client_max_size=1 << 30)
            server["name"] = name
            server.router.add_post("/run", self.run)
            server.router.add_post("/aggregate_metrics", self.aggregate)
            server.router.add_get("/global_config_dict_yaml", self.configuration)
            for path in ("/", "/livez", "/readyz", "/healthz", "/health"):
                server.router.add_get(path, lambda _: web.json_response({"status": "ok"}))
            runner = web.AppRunner(server, access_log=None)
            await runner.setup()
            await web.SockSite(runner, listener).start()
        # Whoever started this process may be killed, and does not end it then.
        while os.getppid() == self.parent:
            await asyncio.sleep(1)

    async def configuration(self, _):
        return web.json_response(yaml.safe_dump(self.config, sort_keys=False))

    async def body(self, request):
        """The body of a request, which is also written down. The file may have been moved away since the last one."""
        body = await request.json()
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"server": request.app["name"], "path": request.path, "body": body}) + "\n")
        return body

    async def aggregate(self, request):
        body = await self.body(request)
        metrics = compute_aggregate_metrics(body["verify_responses"], **self.hooks)
        return web.Response(body=metrics.model_dump_json(), content_type="application/json")

    async def run(self, request):
        body = await self.body(request)
        task, rollout, attempt = identity(body)
        before = self.calls.get((task, rollout), 0)
        self.calls[task, rollout] = before + 1
        answer = self.behaviour(body, task, rollout, attempt, before)
        if isinstance(answer, Fault):
            return await answer.happen(request)
        return web.Response(body=json.dumps(answer, ensure_ascii=False), content_type="application/json")


class Fault:
    """An answer that is not just a result."""

    def __init__(self, kind, status=200, text=""):
        self.kind, self.status, self.text = kind, status, text

    async def happen(self, request):
        if self.kind == "disconnect":
            request.transport.close()
        if self.kind == "cut":
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
            request.transport.write(head + b'{"reward": 1.0')
            await asyncio.sleep(0.05)
            request.transport.close()
        answer = web.Response(status=self.status, text=self.text, content_type="application/json")
        if self.kind == "slow":
            await asyncio.sleep(1.5)
            answer.enable_compression(web.ContentCoding.gzip)
            answer.enable_chunked_encoding()
        return answer
