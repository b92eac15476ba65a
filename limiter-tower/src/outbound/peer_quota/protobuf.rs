//! Parses the fields of a protobuf message in the wire format. A code generator is not worthwhile
//! for these few fields.
//!
//! <https://protobuf.dev/programming-guides/encoding/>

/// The value of a field, of the supported wire types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    /// A text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes.
    Fixed,
}

/// Returns the fields of a message with their numbers, up to the first malformed field.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    let mut rest = message;
    std::iter::from_fn(move || field(&mut rest))
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(rest)?),
        1 => take(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = varint(rest)?;
            Value::Bytes(take(rest, usize::try_from(length).ok()?)?)
        }
        5 => take(rest, 4).map(|_| Value::Fixed)?,
        // Groups are deprecated; other wire types do not exist.
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

/// Seven bits per byte, the lowest first; at most ten bytes.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds one bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
