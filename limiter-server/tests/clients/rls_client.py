"""An independent client of the rate limit service: grpcio with the messages of xds-protos.

Run by limiter-server/tests/grpcio.rs as `rls_client.py HOST:PORT`; exits with an error where a
field is not as expected.
"""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import wrappers_pb2

OK, OVER_LIMIT = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT


def descriptor(value, hits=None):
    entries = [
        ratelimit_pb2.RateLimitDescriptor.Entry(key="generic_key", value=value),
    ]
    wrapped = None if hits is None else wrappers_pb2.UInt64Value(value=hits)
    return ratelimit_pb2.RateLimitDescriptor(entries=entries, hits_addend=wrapped)


def expect(actual, expected):
    if actual != expected:
        raise SystemExit(f"{actual!r} is not {expected!r}")


def main(address):
    stub = rls_pb2_grpc.RateLimitServiceStub(grpc.insecure_channel(address))

    def ask(*descriptors, domain="edge", hits=0):
        request = rls_pb2.RateLimitRequest(
            domain=domain, descriptors=descriptors, hits_addend=hits
        )
        return stub.ShouldRateLimit(request, timeout=20)

    first = ask(descriptor("search", 2), descriptor("unknown"))
    expect(first.overall_code, OK)
    expect([status.code for status in first.statuses], [OK, OK])
    status = first.statuses[0]
    limit = status.current_limit
    expect((limit.name, limit.requests_per_unit), ("search", 3))
    expect(limit.unit, rls_pb2.RateLimitResponse.RateLimit.HOUR)
    expect(status.limit_remaining, 1)
    expect((status.duration_until_reset.seconds, status.duration_until_reset.nanos), (3600, 0))
    expect(first.statuses[1].HasField("current_limit"), False)
    expect(first.HasField("dynamic_metadata"), False)

    denied = ask(descriptor("search"), hits=2)
    expect((denied.overall_code, denied.statuses[0].code), (OVER_LIMIT, OVER_LIMIT))
    expect(denied.statuses[0].limit_remaining, 1)
    header = denied.response_headers_to_add[0]
    expect(header.key, "retry-after")
    expect(header.value, str(denied.statuses[0].duration_until_reset.seconds))
    explained = denied.dynamic_metadata["limiter"]
    expect(explained["policy"], "search")
    expect(explained["origin"], "memory")
    expect(explained["node"], "edge-1")
    expect(explained["would_deny"], True)
    expect(ask(descriptor("search"), hits=1).overall_code, OK)

    for arguments in ({"domain": ""}, {}):
        descriptors = [descriptor("search")] if arguments else []
        try:
            ask(*descriptors, **arguments)
        except grpc.RpcError as error:
            expect(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        else:
            raise SystemExit("a malformed request was accepted")


main(sys.argv[1])
