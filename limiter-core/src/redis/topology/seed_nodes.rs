//! Seed nodes of a cluster. All nodes are reached with the settings of the first seed, so the URLs
//! of the other seeds must have the same settings.

use crate::error::ConfigError;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::tls::Certificates;
use crate::redis::secret_url::SecretUrl;

/// Parses the URLs of the seed nodes.
pub(crate) fn parse(urls: &[SecretUrl], certificates: &Certificates) -> Result<Vec<Endpoint>, ConfigError> {
    let mut seeds: Vec<Endpoint> = Vec::with_capacity(urls.len());
    for url in urls {
        let seed = Endpoint::parse(url, certificates)?;
        if let Some(expected) = unmet_requirement(&seed, seeds.first()) {
            return Err(url.invalid(expected));
        }
        seeds.push(seed);
    }
    Ok(seeds)
}

/// Returns the expected value if a seed is unusable or differs from the first.
fn unmet_requirement(seed: &Endpoint, first: Option<&Endpoint>) -> Option<&'static str> {
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
