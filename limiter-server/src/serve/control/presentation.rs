//! The addresses, names and colours that the pages show.

use std::collections::BTreeMap;

use crate::admin::GatewayAddresses;
use crate::settings::{ListenAddress, NamespaceSettings, Settings};
use crate::store::NamespaceLook;

/// Returns the addresses of the listeners. Those on unix sockets and, with the role admin, on free
/// ports are not known.
pub(super) fn addresses(settings: &Settings) -> GatewayAddresses {
    let known = |address: &ListenAddress| match address {
        ListenAddress::Tcp(address) if address.port() != 0 && !address.ip().is_unspecified() => {
            Some(address.to_string())
        }
        _ => None,
    };
    GatewayAddresses {
        http: known(&settings.http),
        grpc: known(&settings.grpc),
        tls: settings.tls.is_some(),
    }
}

/// Returns the names and colours that the settings file gives to namespaces.
pub(super) fn looks(namespaces: &[NamespaceSettings]) -> BTreeMap<String, NamespaceLook> {
    let configured = namespaces
        .iter()
        .filter(|of| of.label.is_some() || of.colour.is_some());
    let looks = configured.map(|of| {
        let default = NamespaceLook::default();
        let look = NamespaceLook {
            label: of.label.clone().unwrap_or(default.label),
            colour: of.colour.clone().unwrap_or(default.colour),
        };
        (of.name.clone(), look)
    });
    looks.collect()
}
