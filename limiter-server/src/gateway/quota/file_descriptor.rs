//! The description of the quota service for gRPC reflection, besides the files that the rate limit
//! service describes.
//!
//! Options and comments of the original files are left out. `tests/grpcio.rs` compares the
//! description with the files of an independent implementation.

use prost_types::field_descriptor_proto::Type;
use prost_types::{
    DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};

use crate::gateway::proto_file::{
    choice, enumeration, field, map_entry, message, one_of, proto, repeated, values,
};

const SERVICE: &str = "envoy/service/rate_limit_quota/v3/rlqs.proto";
const STRATEGY: &str = "envoy/type/v3/ratelimit_strategy.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const BUCKET: &str = "envoy/type/v3/token_bucket.proto";
const DURATION: &str = "google/protobuf/duration.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const PACKAGE: &str = "envoy.service.rate_limit_quota.v3";

/// Returns the files of the service, which import files of the rate limit service.
#[must_use]
pub fn quota_file_descriptor_set() -> FileDescriptorSet {
    FileDescriptorSet {
        file: vec![bucket_file(), strategy_file(), service_file()],
    }
}

fn bucket_file() -> FileDescriptorProto {
    let bucket = message(
        "TokenBucket",
        vec![
            field("max_tokens", 1, Type::Uint32),
            field("tokens_per_fill", 2, ".google.protobuf.UInt32Value"),
            field("fill_interval", 3, ".google.protobuf.Duration"),
        ],
    );
    proto("envoy.type.v3", BUCKET, &[DURATION, WRAPPERS], vec![bucket])
}

fn strategy_file() -> FileDescriptorProto {
    let nested = |name: &str| format!(".envoy.type.v3.RateLimitStrategy.{name}");
    let per_unit = message(
        "RequestsPerTimeUnit",
        vec![
            field("requests_per_time_unit", 1, Type::Uint64),
            enumeration(field("time_unit", 2, ".envoy.type.v3.RateLimitUnit")),
        ],
    );
    let strategy = DescriptorProto {
        enum_type: vec![values("BlanketRule", &["ALLOW_ALL", "DENY_ALL"])],
        nested_type: vec![per_unit],
        oneof_decl: vec![choice("strategy")],
        ..message(
            "RateLimitStrategy",
            vec![
                one_of(enumeration(field("blanket_rule", 1, nested("BlanketRule")))),
                one_of(field("requests_per_time_unit", 2, nested("RequestsPerTimeUnit"))),
                one_of(field("token_bucket", 3, ".envoy.type.v3.TokenBucket")),
            ],
        )
    };
    proto("envoy.type.v3", STRATEGY, &[UNIT, BUCKET], vec![strategy])
}

fn service_file() -> FileDescriptorProto {
    let absolute = |name: &str| format!(".{PACKAGE}.{name}");
    let method = MethodDescriptorProto {
        name: Some("StreamRateLimitQuotas".to_owned()),
        input_type: Some(absolute("RateLimitQuotaUsageReports")),
        output_type: Some(absolute("RateLimitQuotaResponse")),
        client_streaming: Some(true),
        server_streaming: Some(true),
        ..Default::default()
    };
    FileDescriptorProto {
        service: vec![ServiceDescriptorProto {
            name: Some("RateLimitQuotaService".to_owned()),
            method: vec![method],
            options: None,
        }],
        ..proto(
            PACKAGE,
            SERVICE,
            &[STRATEGY, DURATION],
            vec![reports(absolute), response(absolute), bucket_id(absolute)],
        )
    }
}

fn reports(absolute: impl Fn(&str) -> String) -> DescriptorProto {
    let usage = message(
        "BucketQuotaUsage",
        vec![
            field("bucket_id", 1, absolute("BucketId")),
            field("time_elapsed", 2, ".google.protobuf.Duration"),
            field("num_requests_allowed", 3, Type::Uint64),
            field("num_requests_denied", 4, Type::Uint64),
        ],
    );
    let usages = absolute("RateLimitQuotaUsageReports.BucketQuotaUsage");
    DescriptorProto {
        nested_type: vec![usage],
        ..message(
            "RateLimitQuotaUsageReports",
            vec![
                field("domain", 1, Type::String),
                repeated(field("bucket_quota_usages", 2, usages)),
            ],
        )
    }
}

fn response(absolute: impl Fn(&str) -> String) -> DescriptorProto {
    let nested = |name: &str| absolute(&format!("RateLimitQuotaResponse.{name}"));
    let assignment = message(
        "QuotaAssignmentAction",
        vec![
            field("assignment_time_to_live", 2, ".google.protobuf.Duration"),
            field("rate_limit_strategy", 3, ".envoy.type.v3.RateLimitStrategy"),
        ],
    );
    let action = DescriptorProto {
        nested_type: vec![assignment, message("AbandonAction", Vec::new())],
        oneof_decl: vec![choice("bucket_action")],
        ..message(
            "BucketAction",
            vec![
                field("bucket_id", 1, absolute("BucketId")),
                one_of(field(
                    "quota_assignment_action",
                    2,
                    nested("BucketAction.QuotaAssignmentAction"),
                )),
                one_of(field("abandon_action", 3, nested("BucketAction.AbandonAction"))),
            ],
        )
    };
    DescriptorProto {
        nested_type: vec![action],
        ..message(
            "RateLimitQuotaResponse",
            vec![repeated(field("bucket_action", 1, nested("BucketAction")))],
        )
    }
}

fn bucket_id(absolute: impl Fn(&str) -> String) -> DescriptorProto {
    DescriptorProto {
        nested_type: vec![map_entry("BucketEntry", Type::String)],
        ..message(
            "BucketId",
            vec![repeated(field("bucket", 1, absolute("BucketId.BucketEntry")))],
        )
    }
}
