//! Functions that describe files of Protocol Buffers, for gRPC reflection.
//!
//! The messages are written by hand, so no compiler produces their descriptors. The functions
//! return descriptors with defaults for the forms that Envoy's files use: scalar and message
//! fields, repeated fields, maps, enumerations and one `oneof` for each message.
//! `envoy::file_descriptor` and `quota::file_descriptor` call them. Test: `tests/grpcio.rs`.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MessageOptions, OneofDescriptorProto,
};

/// Returns a file with these imports and messages.
pub(super) fn proto(
    package: &str,
    name: &str,
    uses: &[&str],
    messages: Vec<DescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: uses.iter().map(|name| (*name).to_owned()).collect(),
        message_type: messages,
        syntax: Some("proto3".to_owned()),
        ..Default::default()
    }
}

/// Returns a message without nested types.
pub(super) fn message(name: &str, fields: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields,
        ..Default::default()
    }
}

/// Returns an enumeration with the values 0, 1, ….
pub(super) fn values(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let values = values.iter().zip(0..);
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values
            .map(|(name, number)| EnumValueDescriptorProto {
                name: Some((*name).to_owned()),
                number: Some(number),
                options: None,
            })
            .collect(),
        ..Default::default()
    }
}

/// The type of a field: a scalar, or a message by its name.
pub(super) enum FieldType {
    Scalar(Type),
    Message(String),
}

impl From<Type> for FieldType {
    fn from(scalar: Type) -> Self {
        Self::Scalar(scalar)
    }
}

impl From<&str> for FieldType {
    fn from(name: &str) -> Self {
        Self::Message(name.to_owned())
    }
}

impl From<String> for FieldType {
    fn from(name: String) -> Self {
        Self::Message(name)
    }
}

/// Returns a field that is not repeated.
pub(super) fn field(name: &str, number: i32, of: impl Into<FieldType>) -> FieldDescriptorProto {
    let (of, type_name) = match of.into() {
        FieldType::Scalar(of) => (of, None),
        FieldType::Message(name) => (Type::Message, Some(name)),
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(of.into()),
        type_name,
        ..Default::default()
    }
}

/// Changes the type of a field from a message to an enumeration.
pub(super) fn enumeration(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto {
        r#type: Some(Type::Enum.into()),
        ..field
    }
}

/// Makes a field repeated.
pub(super) fn repeated(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto {
        label: Some(Label::Repeated.into()),
        ..field
    }
}

/// Returns the entry type of a map from text to values of a type.
pub(super) fn map_entry(name: &str, value: impl Into<FieldType>) -> DescriptorProto {
    DescriptorProto {
        options: Some(MessageOptions {
            map_entry: Some(true),
            ..Default::default()
        }),
        ..message(
            name,
            vec![field("key", 1, Type::String), field("value", 2, value)],
        )
    }
}

/// Returns the declaration of a `oneof`.
pub(super) fn choice(name: &str) -> OneofDescriptorProto {
    OneofDescriptorProto {
        name: Some(name.to_owned()),
        options: None,
    }
}

/// Puts a field into the first `oneof` of its message.
pub(super) fn one_of(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto {
        oneof_index: Some(0),
        ..field
    }
}
