//! Patterns that destructure an argument without moving it.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::Pat;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};

/// `let PATTERN = ARGUMENT;` that borrows.
pub(super) fn by_reference(pattern: &Pat, ident: &Ident) -> TokenStream {
    let mut borrowing = RefSetter {
        explicit: HasExplicitRef::is_in(pattern),
    };
    let mut pattern = pattern.clone();
    borrowing.visit_pat_mut(&mut pattern);
    match borrowing.explicit {
        true => quote!(let #pattern = #ident;),
        false => quote!(let #pattern = &#ident;),
    }
}

/// A visitor that is true after a pattern with references. Such a pattern is matched against the
/// value, each name with `ref`; any other pattern is matched against a reference, with the default
/// binding modes of `match`.
#[derive(Default)]
struct HasExplicitRef(bool);

impl HasExplicitRef {
    fn is_in(pattern: &Pat) -> bool {
        let mut explicit = Self::default();
        explicit.visit_pat(pattern);
        explicit.0
    }
}

impl<'ast> Visit<'ast> for HasExplicitRef {
    fn visit_pat_reference(&mut self, _: &'ast syn::PatReference) {
        self.0 = true;
    }

    fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
        self.0 |= name.by_ref.is_some();
        visit::visit_pat_ident(self, name);
    }
}

struct RefSetter {
    explicit: bool,
}

impl VisitMut for RefSetter {
    fn visit_pat_ident_mut(&mut self, name: &mut syn::PatIdent) {
        name.mutability = None;
        name.by_ref = self.explicit.then(Default::default);
        visit_mut::visit_pat_ident_mut(self, name);
    }
}
