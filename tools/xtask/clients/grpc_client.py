"""PyPI's grpcio against the example `tonic_greeter`: the layer's answers follow gRPC's standards.

usage: grpc_client.py HOST:PORT
"""

import json
import sys
import time

import grpc
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.error_details_pb2 import ErrorInfo, QuotaFailure, RetryInfo
from grpc_status import rpc_status

# The library retries soon by itself, unless the server's pushback sets another time.
RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "greeter.Greeter"}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.02s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


def method(channel):
    # Both messages have the encoding of `StringValue`: a text in the first field.
    return channel.unary_unary(
        "/greeter.Greeter/Greet",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )


def call(greet, caller):
    metadata = [("x-caller", caller)] if caller else []
    return greet(StringValue(value="you"), metadata=metadata, timeout=20).value


def denial(greet, caller):
    """The error of a call that has to be denied."""
    try:
        answer = call(greet, caller)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"answered {answer!r}, expected a denial")


def use_up(greet, caller):
    for _ in range(3):
        equal(call(greet, caller), "hello, you")


def details(error):
    """The details in `grpc-status-details-bin`, by type.

    Their code and message must be those of the call.
    """
    status = rpc_status.from_call(error)
    assert status is not None, "no grpc-status-details-bin"
    equal(status.code, error.code().value[0])
    equal(status.message, error.details())
    found = {}
    for packed in status.details:
        for kind in (ErrorInfo, QuotaFailure, RetryInfo):
            detail = kind()
            if packed.Unpack(detail):
                found[kind] = detail
    equal(len(found), len(status.details))
    return found


def equal(found, expected):
    assert found == expected, f"{found!r}, expected {expected!r}"


def a_denial_tells_programs_why_and_when_to_retry(address):
    # Without the library's own retries, which would hide the denial.
    with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel:
        greet = method(channel)
        use_up(greet, "ann")
        error = denial(greet, "ann")
        equal(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        equal(error.details(), "rate limit reached, retry after 2 seconds")

        found = details(error)
        wait = found[RetryInfo].retry_delay.ToNanoseconds()
        assert 0 < wait <= 2_000_000_000, wait
        (violation,) = found[QuotaFailure].violations
        equal((violation.quota_id, violation.quota_value), ("greet", 3))
        equal(
            (found[ErrorInfo].reason, found[ErrorInfo].domain),
            ("RATE_LIMIT_EXCEEDED", "greeter.example.com"),
        )
        pushback = dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")
        # Rounded up to whole milliseconds.
        equal(pushback, str(-(-wait // 1_000_000)))
        print(f"grpcio {grpc.__version__}: {error.code().name}, {error.details()!r}")
        print(f"  RetryInfo {wait / 1e9:.3f} s, grpc-retry-pushback-ms: {pushback}")
        print(f"  QuotaFailure {violation.quota_id!r} of {violation.quota_value}")
        print(f"  ErrorInfo {found[ErrorInfo].reason} in {found[ErrorInfo].domain}")

        time.sleep(wait / 1e9)
        equal(call(greet, "ann"), "hello, you")
        print("  after the time that RetryInfo says: OK")


def a_call_without_a_key_is_not_to_be_retried(address):
    with grpc.insecure_channel(address) as channel:
        error = denial(method(channel), None)
        equal(error.code(), grpc.StatusCode.UNAUTHENTICATED)
        assert rpc_status.from_call(error) is None
        assert "grpc-retry-pushback-ms" not in dict(error.trailing_metadata())
        print(f"  without a key: {error.code().name}")


def the_library_heeds_the_pushback(address):
    options = [("grpc.service_config", json.dumps(RETRIES))]
    with grpc.insecure_channel(address, options=options) as channel:
        greet = method(channel)
        use_up(greet, "bob")
        started = time.monotonic()
        equal(call(greet, "bob"), "hello, you")
        took = time.monotonic() - started
        # The library's own backoff would end all attempts within a tenth of a second.
        assert took > 0.5, took
        print(f"  with retries of its own: OK after {took:.2f} s, as the pushback says")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    a_denial_tells_programs_why_and_when_to_retry(sys.argv[1])
    a_call_without_a_key_is_not_to_be_retried(sys.argv[1])
    the_library_heeds_the_pushback(sys.argv[1])
