"""CL.THROTTLE by redis-py, in both versions of the protocol, alone and in pipelines."""

import asyncio
import sys

import redis
import redis.asyncio

PORT = int(sys.argv[1])


def check_blocking(protocol):
    client = redis.Redis(port=PORT, protocol=protocol, client_name="test", decode_responses=True)
    assert client.ping() is True
    assert client.client_getname() == "test"
    key = f"blocking-{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]

    pipeline = client.pipeline(transaction=False)
    for _ in range(20):
        pipeline.execute_command("CL.THROTTLE", f"pipeline-{protocol}", 15, 30, 36000)
    replies = pipeline.execute()
    assert [reply[0] for reply in replies] == [0] * 16 + [1] * 4, replies

    # An error belongs to its command, and the rest of the pipeline is answered.
    pipeline.execute_command("CL.THROTTLE", key, "many", 30, 60)
    pipeline.execute_command("PING")
    error, pong = pipeline.execute(raise_on_error=False)
    assert isinstance(error, redis.ResponseError) and "max_burst is `many`" in str(error), error
    assert pong in ("PONG", True), pong

    policy = client.execute_command("CL.THROTTLE", f"policy:login:{key}", 0, 1, 1, 3)
    assert policy[:4] == [0, 3, 0, -1], policy
    client.close()

    refused = redis.Redis(port=PORT, protocol=protocol, password="secret")
    try:
        refused.ping()
    except redis.RedisError as error:
        assert "without any password configured" in str(error), error
    else:
        raise AssertionError("a password was accepted")


async def check_async():
    client = redis.asyncio.Redis(port=PORT)
    calls = (client.execute_command("CL.THROTTLE", "async", 15, 30, 36000) for _ in range(20))
    replies = await asyncio.gather(*calls)
    assert sum(reply[0] for reply in replies) == 4, replies
    await client.aclose()


for version in (2, 3):
    check_blocking(version)
asyncio.run(check_async())
