//! Patterns that take an argument apart without moving it.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::Pat;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};

/// `let PATTERN = ARGUMENT;` that only borrows.
pub(super) fn by_reference(pattern: &Pat, ident: &Ident) -> TokenStream {
    let mut borrowing = Borrowing {
        explicit: Explicit::is_in(pattern),
    };
    let mut pattern = pattern.clone();
    borrowing.visit_pat_mut(&mut pattern);
    match borrowing.explicit {
        true => quote!(let #pattern = #ident;),
        false => quote!(let #pattern = &#ident;),
    }
}

/// Whether a pattern speaks of references itself: it is then matched as it is, each name with a
/// `ref`. Any other is matched against a reference, as `match` does by default.
#[derive(Default)]
struct Explicit(bool);

impl Explicit {
    fn is_in(pattern: &Pat) -> bool {
        let mut explicit = Self::default();
        explicit.visit_pat(pattern);
        explicit.0
    }
}

impl<'ast> Visit<'ast> for Explicit {
    fn visit_pat_reference(&mut self, _: &'ast syn::PatReference) {
        self.0 = true;
    }

    fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
        self.0 |= name.by_ref.is_some();
        visit::visit_pat_ident(self, name);
    }
}

struct Borrowing {
    explicit: bool,
}

impl VisitMut for Borrowing {
    fn visit_pat_ident_mut(&mut self, name: &mut syn::PatIdent) {
        name.mutability = None;
        name.by_ref = self.explicit.then(Default::default);
        visit_mut::visit_pat_ident_mut(self, name);
    }
}
