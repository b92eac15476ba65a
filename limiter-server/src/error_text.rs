//! Texts of errors: an error with its causes, in one line for logs and operators, and those that
//! several interfaces report.

use std::error::Error;

/// Formats an error with its causes. Some errors contain the text of their cause, which is not
/// repeated.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = error.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        cause = error.source();
    }
    text
}

/// States that a request with this `content-type`, empty for none, is not JSON.
pub(crate) fn not_json(content_type: &str) -> String {
    match content_type {
        "" => "the header `content-type` is missing, expected `application/json`".to_owned(),
        found => format!("the header `content-type` is `{found}`, expected `application/json`"),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Wrapper(&'static str, Option<Box<Wrapper>>);

    impl fmt::Display for Wrapper {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Wrapper {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            let Self(_, cause) = self;
            cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn cause_that_the_error_contains_is_not_repeated() {
        let cause = Wrapper("connection refused", None);
        let wrapper = Wrapper("cannot dial: connection refused", Some(Box::new(cause)));
        let error = Wrapper("cannot read the registry", Some(Box::new(wrapper)));
        assert_eq!(
            with_causes(&error),
            "cannot read the registry: cannot dial: connection refused"
        );
    }
}
