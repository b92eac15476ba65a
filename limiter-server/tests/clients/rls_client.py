"""An independent client of the rate limit service: grpcio with the messages of xds-protos.

Run by limiter-server/tests/grpcio.rs as `rls_client.py HOST:PORT TOKEN`; exits with an error where a
field is not as expected. It also compares the files that reflection describes with its own.
"""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.rate_limit_quota.v3 import rlqs_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import descriptor_pb2, descriptor_pool, unknown_fields, wrappers_pb2

OK, OVER_LIMIT = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT


def descriptor(value, hits=None):
    entries = [
        ratelimit_pb2.RateLimitDescriptor.Entry(key="generic_key", value=value),
    ]
    wrapped = None if hits is None else wrappers_pb2.UInt64Value(value=hits)
    return ratelimit_pb2.RateLimitDescriptor(entries=entries, hits_addend=wrapped)


def with_limit(of, requests, unit, multiplier=None):
    """The descriptor with a limit. The messages have no unit_multiplier, so it is encoded by hand:
    field 3, a UInt32Value."""
    message = ratelimit_pb2.RateLimitDescriptor.RateLimitOverride(requests_per_unit=requests, unit=unit)
    more = b"" if multiplier is None else bytes([3 << 3 | 2, 2, 1 << 3, multiplier])
    of.limit.ParseFromString(message.SerializeToString() + more)
    return of


def multiplier_of(limit):
    """The unit_multiplier of a limit, which the messages do not have: field 4, a UInt32Value."""
    unknown = [(of.field_number, of.data) for of in unknown_fields.UnknownFieldSet(limit)]
    if not unknown:
        return 1
    ((number, data),) = unknown
    expect(number, 4)
    return wrappers_pb2.UInt32Value.FromString(data).value


def expect(actual, expected):
    if actual != expected:
        raise SystemExit(f"{actual!r} is not {expected!r}")


def described_files(channel, symbol):
    """The files that reflection sends for a symbol. Its messages are encoded by hand."""
    call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    (answer,) = call(iter([b"\x22" + bytes([len(symbol)]) + symbol.encode()]), timeout=20)
    (files,) = fields(answer, 4)
    return [descriptor_pb2.FileDescriptorProto.FromString(file) for file in fields(files, 1)]


def fields(message, wanted):
    """The values of a field of bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        length = varint()
        if kind == 2:
            if number == wanted:
                yield message[at : at + length]
            at += length


# Fields that are newer than the installed xds-protos.
NEWER_FIELDS = {"RateLimit.unit_multiplier"}


def shape(message):
    """The fields of a message and of its nested types, by their names."""
    own = {
        (field.name, field.number, field.type, field.label, field.type_name, field.HasField("oneof_index"))
        for field in message.field
        if f"{message.name}.{field.name}" not in NEWER_FIELDS
    }
    values = {(value.name, value.number) for of in message.enum_type for value in of.value}
    return own, values, {of.name: shape(of) for of in message.nested_type}


def compare_reflection(channel):
    known = descriptor_pool.Default()
    for file in (rls_pb2.DESCRIPTOR, rlqs_pb2.DESCRIPTOR):
        (service,) = file.services_by_name.values()
        described = described_files(channel, service.full_name)
        names = [of.name for of in described]
        if file.name not in names:
            raise SystemExit(f"{file.name} is not among {names}")
        for ours in described:
            if not ours.name.startswith(("envoy/service/", "envoy/type/", "envoy/extensions/")):
                continue
            theirs = descriptor_pb2.FileDescriptorProto()
            known.FindFileByName(ours.name).CopyToProto(theirs)
            messages = {of.name: shape(of) for of in theirs.message_type}
            for message in ours.message_type:
                expect(shape(message), messages[message.name])
            methods = lambda of: [method for service in of.service for method in service.method]
            for ours, theirs in zip(methods(ours), methods(theirs), strict=True):
                for name in ("name", "input_type", "output_type", "client_streaming", "server_streaming"):
                    expect(getattr(ours, name), getattr(theirs, name))


def main(address, token):
    authorization = [("authorization", f"Bearer {token}")]
    channel = grpc.insecure_channel(address)
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    compare_reflection(channel)

    def ask(*descriptors, domain="edge", hits=0):
        request = rls_pb2.RateLimitRequest(
            domain=domain, descriptors=descriptors, hits_addend=hits
        )
        return stub.ShouldRateLimit(request, timeout=20, metadata=authorization)

    first = ask(descriptor("search", 2), descriptor("unknown"))
    expect(first.overall_code, OK)
    expect([status.code for status in first.statuses], [OK, OK])
    status = first.statuses[0]
    limit = status.current_limit
    expect((limit.name, limit.requests_per_unit), ("search", 3))
    expect(limit.unit, rls_pb2.RateLimitResponse.RateLimit.MINUTE)
    expect(multiplier_of(limit), 10)
    expect(status.limit_remaining, 1)
    expect((status.duration_until_reset.seconds, status.duration_until_reset.nanos), (600, 0))
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
    expect(explained["denied"], True)
    expect(explained["reason"], "limit reached")
    expect(explained["revision"], "1")
    expect(explained["key"], "edge")
    expect(ask(descriptor("search"), hits=1).overall_code, OK)

    # The messages have no is_negative_hits: field 4, a varint.
    refund = descriptor("search", 2)
    refund.MergeFromString(bytes([4 << 3, 1]))
    refunded = ask(refund)
    expect((refunded.overall_code, refunded.statuses[0].limit_remaining), (OK, 2))

    day = descriptor("search")
    with_limit(day, 1, 4)
    own = ask(day).statuses[0].current_limit
    expect(own.unit, rls_pb2.RateLimitResponse.RateLimit.DAY)
    expect((own.requests_per_unit, multiplier_of(own)), (1, 1))
    expect(ask(day).overall_code, OVER_LIMIT)
    month = descriptor("search")
    with_limit(month, 5, 5, multiplier=2)
    own = ask(month).statuses[0].current_limit
    expect(own.unit, rls_pb2.RateLimitResponse.RateLimit.MONTH)
    expect((own.requests_per_unit, multiplier_of(own)), (5, 2))

    for arguments in ({"domain": ""}, {}):
        descriptors = [descriptor("search")] if arguments else []
        try:
            ask(*descriptors, **arguments)
        except grpc.RpcError as error:
            expect(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        else:
            raise SystemExit("a malformed request was accepted")


main(sys.argv[1], sys.argv[2])
