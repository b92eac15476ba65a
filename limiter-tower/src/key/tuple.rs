//! Tuples of two to four key extractors: their keys are joined to one key.
//!
//! The extractors run in order, and each key becomes an escaped part of the joined key. Results
//! after a pending one are kept until it completes, so that each part keeps its position.
//!
//! Invariants: in the order of the tuple, the first extractor that rejects, skips or returns limits
//! determines the result, whether it is pending or not; and different parts never yield one key.
//! Tests: below.

use http::Request;
use limiter_core::Key;

use super::extraction::Extraction;
use super::extraction::PendingKey;
use super::extractor::KeyExtractor;

/// The combined key. Keys that differ in one part differ, for all contents of the parts.
#[derive(Default)]
struct Composed {
    key: Option<Key<'static>>,
    /// The extractors that have not run yet.
    rest: Vec<Extraction<'static>>,
}

impl Composed {
    /// Adds the next key. Returns the extraction that ends the combination, if any.
    #[expect(
        clippy::result_large_err,
        reason = "the error is the result of the extraction, which is as large"
    )]
    fn add(&mut self, answer: Extraction<'_>) -> Result<(), Extraction<'static>> {
        match answer {
            Extraction::Key(key) if self.rest.is_empty() => self.key = Some(joined(self.key.take(), &key)),
            Extraction::Key(key) => self.rest.push(Extraction::Key(key.into_owned())),
            Extraction::Pending(pending) => self.rest.push(Extraction::Pending(pending)),
            Extraction::Skip => return Err(Extraction::Skip),
            Extraction::Limits(request_limits) => {
                return Err(Extraction::Limits(request_limits.into_owned()));
            }
            Extraction::Reject(rejection) => return Err(Extraction::Reject(rejection)),
        }
        Ok(())
    }

    fn finish(self) -> Extraction<'static> {
        if self.rest.is_empty() {
            return Extraction::Key(self.key.unwrap_or(Key::global()));
        }
        Extraction::Pending(PendingKey::new(self.complete()))
    }

    async fn complete(self) -> Extraction<'static> {
        let mut composed = self.key;
        for mut answer in self.rest {
            while let Extraction::Pending(pending) = answer {
                answer = pending.await;
            }
            match answer {
                Extraction::Key(key) => composed = Some(joined(composed, &key)),
                end => return end,
            }
        }
        Extraction::Key(composed.unwrap_or(Key::global()))
    }
}

fn joined(before: Option<Key<'static>>, key: &Key<'_>) -> Key<'static> {
    match before {
        Some(before) => before.text(":").key(key),
        None => Key::global().key(key),
    }
}

/// Combines several keys into one: `(key::client_ip(key::TrustedProxies::hops(1)), key::path())`
/// gives each client a budget for each path. The first extractor that skips or rejects the request,
/// or that returns limits, decides; later extractors do not run.
///
/// ```
/// # use http::Request;
/// # use limiter_tower::key::{self, Extraction, KeyExtractor};
/// let by_client_and_path = (key::header("x-api-key"), key::path());
/// let key = |api_key: &str, path: &str| {
///     let request = Request::get(path).header("x-api-key", api_key).body(()).unwrap();
///     match by_client_and_path.extract(&request) {
///         Extraction::Key(key) => key.into_owned(),
///         other => panic!("{other:?}"),
///     }
/// };
/// assert_eq!(key("ann", "/search"), key("ann", "/search"));
/// assert_ne!(key("ann", "/search"), key("bob", "/search"));
/// assert_ne!(key("ann:/a", "/b"), key("ann", "/a:/b"));
/// ```
impl<B, E1, E2> KeyExtractor<B> for (E1, E2)
where
    E1: KeyExtractor<B>,
    E2: KeyExtractor<B>,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        compose(request, [&self.0, &self.1])
    }
}

/// As of two.
impl<B, E1, E2, E3> KeyExtractor<B> for (E1, E2, E3)
where
    E1: KeyExtractor<B>,
    E2: KeyExtractor<B>,
    E3: KeyExtractor<B>,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        compose(request, [&self.0, &self.1, &self.2])
    }
}

/// As of two.
impl<B, E1, E2, E3, E4> KeyExtractor<B> for (E1, E2, E3, E4)
where
    E1: KeyExtractor<B>,
    E2: KeyExtractor<B>,
    E3: KeyExtractor<B>,
    E4: KeyExtractor<B>,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        compose(request, [&self.0, &self.1, &self.2, &self.3])
    }
}

fn compose<B, const N: usize>(
    request: &Request<B>,
    extractors: [&dyn KeyExtractor<B>; N],
) -> Extraction<'static> {
    let mut composed = Composed::default();
    for extractor in extractors {
        if let Err(end) = composed.add(extractor.extract(request)) {
            if composed.rest.is_empty() {
                return end;
            }
            // An earlier extractor may reject the request, and takes precedence.
            composed.rest.push(end);
            break;
        }
    }
    composed.finish()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::panic, reason = "a test ends that way")]

    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use http::StatusCode;

    use super::super::{from_async, global, header, path};
    use super::*;

    fn request() -> Request<()> {
        let (mut head, ()) = Request::new(()).into_parts();
        head.uri = http::Uri::from_static("/a:b");
        Request::from_parts(head, ())
    }

    /// Returns a pending extraction.
    fn pending<A: super::super::IntoExtraction + Clone + Send + 'static>(answer: A) -> impl KeyExtractor<()> {
        from_async(move |_| std::future::ready(answer.clone()))
    }

    fn extract_from(extractor: &impl KeyExtractor<()>) -> Extraction<'static> {
        match extractor.extract(&request()) {
            Extraction::Key(key) => Extraction::Key(key.into_owned()),
            Extraction::Pending(pending) => match pin!(pending).poll(&mut Context::from_waker(Waker::noop()))
            {
                Poll::Ready(answer) => answer,
                Poll::Pending => panic!("the extraction is pending"),
            },
            Extraction::Skip => Extraction::Skip,
            Extraction::Limits(request_limits) => Extraction::Limits(request_limits.into_owned()),
            Extraction::Reject(rejection) => Extraction::Reject(rejection),
        }
    }

    #[test]
    fn pending_part_keeps_its_position() {
        let at_once = extract_from(&(path(), |_: &Request<()>| "b", global()));
        assert_eq!(at_once, Extraction::Key(Key::global().part("/a:b").text(":b:")));
        for extractor in [
            &(path(), pending("b"), global()) as &dyn KeyExtractor<()>,
            &(pending("/a:b"), pending("b"), pending("")),
            &(pending("/a:b"), |_: &Request<()>| "b", global()),
        ] {
            assert_eq!(
                extract_from(&|request: &Request<()>| match extractor.extract(request) {
                    Extraction::Pending(pending) => Extraction::Pending(pending),
                    other => panic!("{other:?}"),
                }),
                at_once
            );
        }
    }

    #[test]
    fn first_extractor_that_skips_or_rejects_decides() {
        let never = |_: &Request<()>| -> &'static str { panic!("the extractor must not run") };
        let skip = |_: &Request<()>| Extraction::Skip;
        let rejection = Extraction::Reject(StatusCode::FORBIDDEN.into());
        assert_eq!(extract_from(&(path(), skip, never)), Extraction::Skip);
        assert_eq!(
            extract_from(&(path(), header("x-api-key").or_reject(403), never)),
            rejection
        );
        assert_eq!(extract_from(&(pending("a"), skip, never)), Extraction::Skip);
        assert_eq!(
            extract_from(&(pending("a"), pending(Err::<u64, _>(StatusCode::FORBIDDEN)))),
            rejection
        );
        assert_eq!(
            extract_from(&(pending(Err::<u64, _>(StatusCode::FORBIDDEN)), skip, never)),
            rejection,
            "a missing header does not bypass an asynchronous extractor"
        );
    }

    #[test]
    fn parts_and_groups_never_collide() {
        let key = |text: &'static str, group: Option<&'static str>| {
            move |_: &Request<()>| match group {
                Some(group) => Key::from(text).in_group(group),
                None => Key::from(text),
            }
        };
        let pairs = [
            extract_from(&(key("a:b", None), key("c", None))),
            extract_from(&(key("a", None), key("b:c", None))),
            extract_from(&(key("a%3Ab", None), key("c", None))),
            extract_from(&(key("a", Some("g")), key("b", None))),
            extract_from(&(key("a", None), key("b", Some("g")))),
            extract_from(&(key("a", Some("g")), key("b", Some("g")))),
            extract_from(&(key("a", Some("g")), key("b", Some("h")))),
            extract_from(&(key("g|a", None), key("b", None))),
            extract_from(&(key("", None), key("", None))),
            extract_from(&(key("", None), key("", None), key("", None))),
        ];
        for (place, pair) in pairs.iter().enumerate() {
            assert!(
                !pairs.iter().skip(place + 1).any(|other| other == pair),
                "{pair:?}"
            );
        }
    }
}
