//! Servers with TLS, and a certificate authority of the test.

use std::fs;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

use crate::{RedisServer, RespValue, acl, port};

/// A certificate authority that only the test trusts.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Panics
    /// If the system has no randomness.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "a test's authority");
        let key = made(KeyPair::generate());
        let certificate = made(params.self_signed(&key)).pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// Returns the authority's own certificate, in PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Signs a certificate for a server with these names.
    ///
    /// # Panics
    /// If a name is not valid in a certificate.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        self.sign(
            made(CertificateParams::new(names)),
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    /// Signs for a client.
    #[must_use]
    pub fn client(&self) -> Identity {
        self.sign(CertificateParams::default(), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Signs for a client with these DNS names and URIs.
    ///
    /// # Panics
    /// If a name is not valid in a certificate.
    #[must_use]
    pub fn client_named(&self, names: &[&str]) -> Identity {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names
            .iter()
            .map(|&name| match name.contains("://") {
                true => SanType::URI(made(name.try_into())),
                false => SanType::DnsName(made(name.try_into())),
            })
            .collect();
        params
            .distinguished_name
            .push(DnType::CommonName, "a named client");
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Identity {
        params.extended_key_usages = vec![usage];
        let key = made(KeyPair::generate());
        Identity {
            certificate: made(params.signed_by(&key, &self.issuer)).pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens a TLS port on a server with the certificate of `identity`, and returns its URL on
/// `localhost`. The server verifies its peers with `authority`, and requires client certificates if
/// `demanding` is set.
///
/// `None` if the program that `REDIS_SERVER` names was built without TLS.
///
/// # Panics
/// If another program was built without TLS, or cannot be configured.
#[must_use]
pub fn serve(
    server: &RedisServer,
    authority: &Authority,
    identity: &Identity,
    demanding: bool,
) -> Option<String> {
    let file = |name: &str, content: &str| {
        let path = server.dir().join(name);
        made(fs::write(&path, content));
        path.display().to_string()
    };
    let root = file("authority.pem", &authority.certificate);
    let certificate = file("server.pem", &identity.certificate);
    let key = file("server.key", &identity.key);
    let port = port::free();
    let settings = [
        ("tls-ca-cert-file", root.as_str()),
        ("tls-auth-clients", if demanding { "yes" } else { "no" }),
        ("tls-cert-file", &certificate),
        ("tls-key-file", &key),
        ("tls-port", &port.to_string()),
    ];
    let mut command = vec!["CONFIG", "SET"];
    command.extend(settings.iter().flat_map(|(name, value)| [*name, *value]));
    match server.try_command(&command) {
        Ok(RespValue::Status(_)) => Some(format!("rediss://{}@localhost:{port}/", acl::LOGIN)),
        answer if std::env::var_os("REDIS_SERVER").is_none() => {
            panic!("the server does not accept TLS connections: {answer:?}")
        }
        // Redis 8 built without it does not refuse, but ends.
        _ => None,
    }
}

#[track_caller]
fn made<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
