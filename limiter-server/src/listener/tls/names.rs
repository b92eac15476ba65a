//! The names of a client certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The tag of a SEQUENCE in DER.
const SEQUENCE: u8 = 0x30;
/// The tag of a SET in DER.
const SET: u8 = 0x31;
/// The tags of the texts of a common name: UTF8String and PrintableString.
const TEXTS: [u8; 2] = [0x0c, 0x13];
/// The object identifier 2.5.4.3, common name, with its tag and length.
const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];

/// Returns the DNS names and URIs of the subject alternative name, then the common name, of a
/// verified certificate.
pub(super) fn of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let alternative = certificate
        .valid_dns_names()
        .chain(certificate.valid_uri_names())
        .map(str::to_owned);
    alternative.chain(common_name(certificate.subject())).collect()
}

/// Returns the common name of the content of a distinguished name: sets of sequences of an object
/// identifier and a text (RFC 5280, section 4.1.2.4).
fn common_name(mut subject: &[u8]) -> Option<String> {
    while let Some((SET, mut attributes, rest)) = element(subject) {
        while let Some((SEQUENCE, attribute, others)) = element(attributes) {
            if let Some(value) = attribute.strip_prefix(COMMON_NAME)
                && let Some((tag, text, [])) = element(value)
                && TEXTS.contains(&tag)
            {
                return String::from_utf8(text.to_vec()).ok();
            }
            attributes = others;
        }
        subject = rest;
    }
    None
}

/// Returns the tag and the content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, bytes) = bytes.split_first()?;
    let (first, bytes) = bytes.split_first()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(*first), bytes),
        0x81 => {
            let (length, bytes) = bytes.split_first()?;
            (usize::from(*length), bytes)
        }
        0x82 => {
            let (length, bytes) = bytes.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), bytes)
        }
        // A name is shorter than 64 KiB.
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an attribute of a name in a set of its own.
    fn attribute(identifier: u8, tag: u8, text: &[u8]) -> Vec<u8> {
        let length = u8::try_from(text.len()).unwrap();
        let value = [&[0x06, 0x03, 0x55, 0x04, identifier, tag, length], text].concat();
        let sequence = [&[SEQUENCE, 7 + length], &*value].concat();
        [&[SET, 9 + length], &*sequence].concat()
    }

    #[test]
    fn common_name_is_found_among_other_attributes() {
        let subject = [attribute(10, 0x0c, b"Org"), attribute(3, 0x13, b"edge-1")].concat();
        assert_eq!(common_name(&subject).as_deref(), Some("edge-1"));
        assert_eq!(common_name(&attribute(10, 0x0c, b"edge-1")), None);
        assert_eq!(common_name(&attribute(3, 0x1e, b"edge-1")), None);
        assert_eq!(common_name(&attribute(3, 0x0c, b"\xff")), None);
    }

    #[test]
    fn truncated_names_are_no_names() {
        let subject = attribute(3, 0x0c, b"edge");
        for length in 0..subject.len() {
            assert_eq!(common_name(&subject[..length]), None, "{length}");
        }
        assert_eq!(common_name(&[SET, 0x83, 1, 0, 0]), None);
    }
}
