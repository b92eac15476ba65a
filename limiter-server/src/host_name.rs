//! Names in the header `Host`.

/// Returns whether a `Host` is an address or `localhost`, with or without a port.
#[must_use]
pub fn is_local(host: &str) -> bool {
    let name = without_port(host);
    name.eq_ignore_ascii_case("localhost") || address_of(name).is_some()
}

/// Returns whether a `Host` denotes this machine: `localhost`, 127.0.0.0/8 or `[::1]`.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let name = without_port(host);
    name.eq_ignore_ascii_case("localhost") || address_of(name).is_some_and(|address| address.is_loopback())
}

/// Returns a `Host` without its port.
#[must_use]
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Returns whether a text is the name of a host, without a port.
#[must_use]
pub(crate) fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// Returns the error of a request whose `Host` is not accepted.
pub(crate) fn not_accepted(host: Option<&str>) -> String {
    let expected = "expected a `Host` that is an address, `localhost` or one of the setting allowed_hosts";
    match host {
        Some(host) => format!("the `Host` is `{host:.255}`, {expected}"),
        None => format!("the `Host` is missing, {expected}"),
    }
}

fn address_of(name: &str) -> Option<std::net::IpAddr> {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    address.unwrap_or(name).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_local() {
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]",
            "[::1]:80",
            "10.0.0.7",
        ] {
            assert!(is_local(host), "{host}");
            assert_eq!(is_loopback(host), host != "10.0.0.7", "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example:80",
            "localhost.evil.example",
            "localhost:x",
        ] {
            assert!(!is_local(host) && !is_loopback(host), "{host}");
        }
    }
}
