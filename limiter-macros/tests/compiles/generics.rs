//! Generics, lifetimes, where clauses, `impl Trait`, and a function inside a function.
#![expect(clippy::needless_maybe_sized, reason = "people write such bounds")]

use std::fmt::Display;

use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 20, rate = 10, key = "{value}:{other}")]
async fn generic<'a, T, const N: usize>(
    value: &'a T,
    other: impl Display + Send,
    rest: [T; N],
) -> Result<&'a T, Rejection>
where
    T: Display + ?Sized + Clone,
{
    let _ = (other, rest);
    Ok(value)
}

async fn outer() -> Result<u32, Rejection> {
    #[token_limiter(capacity = 20, rate = 10)]
    async fn inner() -> Result<u32, Rejection> {
        Ok(1)
    }
    inner().await
}

#[test]
fn annotated_generic_functions_compile() {
    drop((generic(&1, "a", [2, 3]), outer()));
}
