//! The nodes that a cluster is found through. All nodes are reached as the first of them is, so the
//! others may not say anything else.

use crate::error::ConfigError;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::tls::Certificates;
use crate::redis::secret_url::SecretUrl;

/// What the URLs of a cluster say.
pub(crate) fn parse(urls: &[SecretUrl], certificates: &Certificates) -> Result<Vec<Endpoint>, ConfigError> {
    let mut seeds: Vec<Endpoint> = Vec::with_capacity(urls.len());
    for url in urls {
        let seed = Endpoint::parse(url, certificates)?;
        if let Some(expected) = mistake(&seed, seeds.first()) {
            return Err(url.invalid(expected));
        }
        seeds.push(seed);
    }
    Ok(seeds)
}

/// What was expected, where that is something else.
fn mistake(seed: &Endpoint, first: Option<&Endpoint>) -> Option<&'static str> {
    if seed.address().is_none() {
        return Some("a host and a port of a cluster's node");
    }
    if seed.login.db() != 0 {
        return Some("no database, since a cluster has none but 0");
    }
    let first = first?;
    match (seed.tls.is_some(), first.tls.is_some()) {
        (false, true) => return Some("rediss://, as the first URL of the cluster"),
        (true, false) => return Some("redis://, as the first URL of the cluster"),
        _ => {}
    }
    let same =
        seed.login.username() == first.login.username() && seed.login.password() == first.login.password();
    (!same).then_some("the user and the password of the first URL of the cluster")
}
