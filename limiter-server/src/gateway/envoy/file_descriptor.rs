//! The description of the rate limit service for gRPC reflection.
//!
//! The files are described in code, because the messages are written by hand. Options and comments
//! of the original files are left out. `tests/grpcio.rs` compares the description with the files of
//! an independent implementation.

use prost_types::field_descriptor_proto::Type;
use prost_types::{
    DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};

use crate::gateway::proto_file::{
    choice, enumeration, field, map_entry, message, one_of, proto, repeated, values,
};

const COMMON: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";
const HEADER: &str = "envoy/config/core/v3/base.proto";
const DESCRIPTOR: &str = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
const RESPONSE: &str = ".envoy.service.ratelimit.v3.RateLimitResponse";
const UNITS: [&str; 8] = [
    "UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK",
];

/// Returns the files of the service and the types that it uses.
#[must_use]
pub fn file_descriptor_set() -> FileDescriptorSet {
    FileDescriptorSet {
        file: vec![header_file(), unit_file(), common_file(), service_file()]
            .into_iter()
            .chain(well_known_files())
            .collect(),
    }
}

fn well_known_files() -> Vec<FileDescriptorProto> {
    let wrapper = |name: &str, of: Type| message(name, vec![field("value", 1, of)]);
    let value = [
        field("number_value", 2, Type::Double),
        field("string_value", 3, Type::String),
        field("bool_value", 4, Type::Bool),
        field("struct_value", 5, ".google.protobuf.Struct"),
    ];
    let entry = map_entry("FieldsEntry", ".google.protobuf.Value");
    let fields = DescriptorProto {
        nested_type: vec![entry],
        ..message(
            "Struct",
            vec![repeated(field(
                "fields",
                1,
                ".google.protobuf.Struct.FieldsEntry",
            ))],
        )
    };
    let moment = || vec![field("seconds", 1, Type::Int64), field("nanos", 2, Type::Int32)];
    let file = |name: &str, messages| proto("google.protobuf", name, &[], messages);
    vec![
        file(
            "google/protobuf/wrappers.proto",
            vec![
                wrapper("UInt32Value", Type::Uint32),
                wrapper("UInt64Value", Type::Uint64),
            ],
        ),
        file(
            "google/protobuf/duration.proto",
            vec![message("Duration", moment())],
        ),
        file(
            "google/protobuf/timestamp.proto",
            vec![message("Timestamp", moment())],
        ),
        file(
            "google/protobuf/struct.proto",
            vec![fields, message("Value", value.into())],
        ),
    ]
}

fn header_file() -> FileDescriptorProto {
    let header = message(
        "HeaderValue",
        vec![
            field("key", 1, Type::String),
            field("value", 2, Type::String),
            field("raw_value", 3, Type::Bytes),
        ],
    );
    proto("envoy.config.core.v3", HEADER, &[], vec![header])
}

fn unit_file() -> FileDescriptorProto {
    let units = UNITS.get(..7).unwrap_or_default();
    FileDescriptorProto {
        enum_type: vec![values("RateLimitUnit", units)],
        ..proto(
            "envoy.type.v3",
            "envoy/type/v3/ratelimit_unit.proto",
            &[],
            Vec::new(),
        )
    }
}

fn common_file() -> FileDescriptorProto {
    let entry = message(
        "Entry",
        vec![field("key", 1, Type::String), field("value", 2, Type::String)],
    );
    let limit = message(
        "RateLimitOverride",
        vec![
            field("requests_per_unit", 1, Type::Uint32),
            enumeration(field("unit", 2, ".envoy.type.v3.RateLimitUnit")),
            field("unit_multiplier", 3, ".google.protobuf.UInt32Value"),
        ],
    );
    let nested = |name: &str| format!("{DESCRIPTOR}.{name}");
    let descriptor = DescriptorProto {
        nested_type: vec![entry, limit],
        ..message(
            "RateLimitDescriptor",
            vec![
                repeated(field("entries", 1, nested("Entry"))),
                field("limit", 2, nested("RateLimitOverride")),
                field("hits_addend", 3, ".google.protobuf.UInt64Value"),
                field("is_negative_hits", 4, Type::Bool),
            ],
        )
    };
    let package = "envoy.extensions.common.ratelimit.v3";
    let uses = [
        "envoy/type/v3/ratelimit_unit.proto",
        "google/protobuf/wrappers.proto",
    ];
    proto(package, COMMON, &uses, vec![descriptor])
}

fn service_file() -> FileDescriptorProto {
    let request = message(
        "RateLimitRequest",
        vec![
            field("domain", 1, Type::String),
            repeated(field("descriptors", 2, DESCRIPTOR)),
            field("hits_addend", 3, Type::Uint32),
        ],
    );
    let nested = |name: &str| format!("{RESPONSE}.{name}");
    let header = |name: &str, number| repeated(field(name, number, ".envoy.config.core.v3.HeaderValue"));
    let limit = DescriptorProto {
        enum_type: vec![values("Unit", &UNITS)],
        ..message(
            "RateLimit",
            vec![
                field("requests_per_unit", 1, Type::Uint32),
                enumeration(field("unit", 2, nested("RateLimit.Unit"))),
                field("name", 3, Type::String),
                field("unit_multiplier", 4, ".google.protobuf.UInt32Value"),
            ],
        )
    };
    let quota = DescriptorProto {
        oneof_decl: vec![choice("expiration_specifier")],
        ..message(
            "Quota",
            vec![
                field("requests", 1, Type::Uint32),
                one_of(field("valid_until", 2, ".google.protobuf.Timestamp")),
                field("id", 3, Type::String),
            ],
        )
    };
    let status = message(
        "DescriptorStatus",
        vec![
            enumeration(field("code", 1, nested("Code"))),
            field("current_limit", 2, nested("RateLimit")),
            field("limit_remaining", 3, Type::Uint32),
            field("duration_until_reset", 4, ".google.protobuf.Duration"),
            field("quota", 5, nested("Quota")),
        ],
    );
    let response = DescriptorProto {
        enum_type: vec![values("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
        nested_type: vec![limit, quota, status],
        ..message(
            "RateLimitResponse",
            vec![
                enumeration(field("overall_code", 1, nested("Code"))),
                repeated(field("statuses", 2, nested("DescriptorStatus"))),
                header("response_headers_to_add", 3),
                header("request_headers_to_add", 4),
                field("raw_body", 5, Type::Bytes),
                field("dynamic_metadata", 6, ".google.protobuf.Struct"),
                field("quota", 7, nested("Quota")),
            ],
        )
    };
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: Some(".envoy.service.ratelimit.v3.RateLimitRequest".to_owned()),
        output_type: Some(RESPONSE.to_owned()),
        ..Default::default()
    };
    let uses = [
        HEADER,
        COMMON,
        "google/protobuf/duration.proto",
        "google/protobuf/struct.proto",
        "google/protobuf/timestamp.proto",
        "google/protobuf/wrappers.proto",
    ];
    FileDescriptorProto {
        service: vec![ServiceDescriptorProto {
            name: Some("RateLimitService".to_owned()),
            method: vec![method],
            options: None,
        }],
        ..proto(
            "envoy.service.ratelimit.v3",
            SERVICE,
            &uses,
            vec![request, response],
        )
    }
}
