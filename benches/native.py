"""The loop of tool calls as one would write it with aiohttp: a session, a model, its tools, a verifier; nothing is kept.

python native.py TASKS MODEL_URL RESOURCES_URL REPEATS CONCURRENCY
"""

import asyncio
import json
import sys

import aiohttp

JSON = {"Content-Type": "application/json"}


async def rollout(session, row, model, resources):
    async def post(url, body, cookies):
        text = json.dumps(body, separators=(",", ":"))
        async with session.post(url, data=text, headers=JSON, cookies=cookies) as response:
            body = await response.read()
            if response.cookies:
                cookies = response.cookies
            return response.status, body, cookies

    status, _, cookies = await post(f"{resources}/seed_session", row, None)
    assert status == 200, status
    params = dict(row["responses_create_params"])
    items = list(params["input"])
    output = []
    while True:
        status, body, _ = await post(f"{model}/v1/responses", {**params, "input": items + output}, None)
        assert status == 200, body
        response = json.loads(body)
        output += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls or response.get("incomplete_details"):
            break
        for call in calls:
            arguments = json.loads(call["arguments"])
            _, body, cookies = await post(f"{resources}/{call['name']}", arguments, cookies)
            output.append({"type": "function_call_output", "call_id": call["call_id"], "output": body.decode()})
    response["output"] = output
    status, body, _ = await post(f"{resources}/verify", {**row, "response": response}, cookies)
    assert status == 200, body
    return json.loads(body)["reward"]


async def main():
    tasks, model, resources, repeats, concurrency = sys.argv[1:]
    rows = [json.loads(line) for line in open(tasks, encoding="utf-8")]

    def all_rollouts():
        for index, row in enumerate(rows):
            for number in range(int(repeats)):
                yield {**row, "_ng_task_index": index, "_ng_rollout_index": number}

    todo = all_rollouts()
    rewards = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def worker():
            for row in todo:
                rewards.append(await rollout(session, row, model, resources))

        await asyncio.gather(*[worker() for _ in range(int(concurrency))])
    print(json.dumps({"rollouts": len(rewards), "reward": sum(rewards)}))


asyncio.run(main())
