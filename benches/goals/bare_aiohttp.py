"""Rollouts as one would collect them with aiohttp: a session, a pool of workers, answers read as JSON; nothing is kept.

python aiohttp.py TASKS RUN_URL REPEATS ROLLOUTS CONCURRENCY
"""

import asyncio
import json
import sys
import time

import aiohttp


async def main():
    tasks, url, repeats, rollouts, concurrency = sys.argv[1:]
    repeats, rollouts = int(repeats), int(rollouts)
    rows = [json.loads(line) for line in open(tasks, encoding="utf-8")]

    def all_rollouts():
        for number in range(rollouts):
            index = number // repeats
            yield {**rows[index], "_ng_task_index": index, "_ng_rollout_index": number % repeats}

    todo = all_rollouts()
    rewards = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def worker():
            for row in todo:
                async with session.post(url, json=row) as response:
                    assert response.status == 200, response.status
                    rewards.append((await response.json())["reward"])

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[worker() for _ in range(int(concurrency))])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"rollouts": len(rewards), "seconds": seconds, "cpu": cpu}))


asyncio.run(main())
