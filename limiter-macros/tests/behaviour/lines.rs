//! Source positions and names of listed annotations.

use limiter_core::annotations::{annotations, with_limiter};
use limiter_core::{Limiter, Rejection, token_limiter, window_limiter};

const FIRST: u32 = line!() + 2;

#[token_limiter(name = "sites.first", capacity = 5, rate = 1)]
#[doc = "Another attribute stands between them."]
#[window_limiter(name = "sites.second", limit = 5, window = "1m")]
#[limiter_core::funnel_limiter(name = "sites.third", capacity = 5, rate = 1)]
async fn three() -> Result<(), Rejection> {
    Ok(())
}

struct Methods;

const BLOCK: u32 = line!() + 2;

#[token_limiter(name = "sites.block", capacity = 5, rate = 1)]
impl Methods {
    #[window_limiter(name = "sites.own", limit = 5, window = "1m")]
    async fn method(&self) -> Result<(), Rejection> {
        Ok(())
    }
}

macro_rules! limited {
    ($name:ident) => {
        #[token_limiter(name = "sites.made", capacity = 5, rate = 1)]
        #[window_limiter(name = "sites.made.too", limit = 5, window = "1m")]
        async fn $name() -> Result<(), Rejection> {
            Ok(())
        }
    };
}

const MADE: u32 = line!() + 1;
limited!(made);

#[tokio::test]
async fn each_attribute_is_listed_at_its_own_line() {
    let all = annotations();
    let line = |name: &str| all.iter().find(|site| site.name() == name).unwrap().line();
    assert_eq!(line("sites.first"), FIRST);
    assert_eq!(line("sites.second"), FIRST + 2);
    assert_eq!(line("sites.third"), FIRST + 3);
    assert_eq!(line("sites.own"), BLOCK + 2, "the method's own attribute");
    assert_eq!(
        line("sites.block::method"),
        BLOCK + 3,
        "the method, for the block's attribute"
    );
    // The code of a macro has the file and line of its use.
    assert_eq!((line("sites.made"), line("sites.made.too")), (MADE, MADE));

    with_limiter(Limiter::in_process().build(), async {
        assert!(three().await.is_ok() && Methods.method().await.is_ok() && made().await.is_ok());
    })
    .await;
}

#[test]
fn block_name_error_suggests_method_names() {
    let limits = Limiter::in_process().build();
    let error = limits.annotation("sites.block").unwrap_err().to_string();
    assert!(
        error.ends_with("expected the name of a method's limit: `sites.block::method`"),
        "{error}"
    );
    let error = limits.annotation("unknown").unwrap_err().to_string();
    assert!(
        error.contains("as `limiter_core::annotations::annotations()` lists them"),
        "{error}"
    );
}
