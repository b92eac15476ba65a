//! Keys as format strings: `"user:{claims.sub}"`. Each placeholder becomes one escaped part of the
//! key, so that one value cannot imitate two parts.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::{Index, LitStr, Member};

use crate::diagnostics::{Diagnostics, closest_match};

/// The parts of a format string.
pub(crate) struct Template {
    pub(crate) span: Span,
    /// The text in the attribute.
    pub(crate) written: String,
    pub(crate) pieces: Vec<Piece>,
}

pub(crate) enum Piece {
    Text(String),
    /// An argument with the path to one of its fields.
    Place {
        root: Ident,
        fields: Vec<Member>,
    },
}

/// The names at which a placeholder can start.
pub(crate) struct Names {
    pub(crate) names: Vec<Ident>,
}

impl Template {
    /// Parses the text of a key and reports all errors.
    pub(crate) fn parse(literal: &LitStr, names: &Names, diagnostics: &mut Diagnostics) -> Option<Self> {
        let (text, span) = (literal.value(), literal.span());
        let before = diagnostics.count();
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '{' | '}' if letters.peek() == Some(&letter) => {
                    letters.next();
                    plain.push(letter);
                }
                '{' => {
                    let mut inside = String::new();
                    let closed = loop {
                        match letters.next() {
                            Some('}') => break true,
                            Some(letter) => inside.push(letter),
                            None => break false,
                        }
                    };
                    if !closed {
                        diagnostics.at(span, "a `{` is not closed: write `{{` for a brace that is text");
                        return None;
                    }
                    match place(&inside, span, names) {
                        Ok(place) => {
                            if !plain.is_empty() {
                                pieces.push(Piece::Text(std::mem::take(&mut plain)));
                            }
                            pieces.push(place);
                        }
                        Err(message) => diagnostics.at(span, message),
                    }
                }
                '}' => {
                    diagnostics.at(span, "a `}` closes nothing: write `}}` for a brace that is text");
                    return None;
                }
                letter => plain.push(letter),
            }
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        (before == diagnostics.count()).then_some(Self {
            span,
            written: text,
            pieces,
        })
    }

    /// The key without parts, which all calls share; also the default.
    pub(crate) fn global() -> Self {
        Self {
            span: Span::call_site(),
            written: String::new(),
            pieces: Vec::new(),
        }
    }

    /// The names at the start of the placeholders.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Ident> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Place { root, .. } => Some(root),
            Piece::Text(_) => None,
        })
    }

    /// The text, if there are no placeholders.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }
}

impl Piece {
    /// The text between the braces, without spaces.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Text(_) => String::new(),
            Self::Place { root, fields } => {
                let field = |member: &Member| match member {
                    Member::Named(name) => format!(".{}", name.unraw()),
                    Member::Unnamed(index) => format!(".{}", index.index),
                };
                let fields: String = fields.iter().map(field).collect();
                format!("{}{fields}", root.unraw())
            }
        }
    }
}

/// Parses the text between the braces.
fn place(inside: &str, span: Span, names: &Names) -> Result<Piece, String> {
    let mut parts = inside.trim().split('.').map(str::trim);
    let root = parts.next().unwrap_or_default();
    if root.is_empty() && parts.next().is_none() {
        return Err(format!("`{{}}` needs the name of an argument, {}", names.offer()));
    }
    if let Some((name, spec)) = inside.split_once(':').filter(|_| !inside.contains("::")) {
        return Err(format!(
            "a key takes values as they display, without a format such as `:{spec}`: write `{{{name}}}`, or give an \
             expression instead of the string"
        ));
    }
    if !root.is_empty() && root.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "`{{{inside}}}` needs the name of an argument, not a number, {}",
            names.offer()
        ));
    }
    let fields: Option<Vec<Member>> = parts.map(|field| member(field, span)).collect();
    let (Some(fields), Some(Member::Named(root))) = (fields, member(root, span)) else {
        return Err(format!(
            "`{{{inside}}}` is neither an argument nor a field of one: calls and indices go into an expression, such as \
             `key = user.id()`, or `key = limiter_core::Key::from(\"user:\").part(user.id())`"
        ));
    };
    let Some(known) = names.names.iter().find(|name| name.unraw() == root.unraw()) else {
        let root = root.unraw().to_string();
        if root == "self" {
            return Err(format!("there is no `self` here, {}", names.offer()));
        }
        let texts: Vec<String> = names.names.iter().map(|name| name.unraw().to_string()).collect();
        return Err(match closest_match(&root, texts.iter().map(String::as_str)) {
            Some(near) => format!("there is no argument `{root}`, did you mean `{near}`?"),
            None => format!("there is no argument `{root}`, {}", names.offer()),
        });
    };
    // Uses the hygiene of the argument, so that a function that a macro generates finds its
    // arguments.
    let mut root = known.clone();
    root.set_span(span.resolved_at(known.span()));
    Ok(Piece::Place { root, fields })
}

/// A field's name or number.
fn member(text: &str, span: Span) -> Option<Member> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text
            .parse()
            .ok()
            .map(|index| Member::Unnamed(Index { index, span }));
    }
    let raw = text.strip_prefix("r#").unwrap_or(text);
    let mut ident = syn::parse::Parser::parse_str(Ident::parse_any, raw).ok()?;
    let is_keyword = syn::parse_str::<Ident>(raw).is_err();
    if is_keyword && !["self", "Self", "super", "crate", "_"].contains(&raw) {
        ident = Ident::new_raw(raw, span);
    }
    ident.set_span(span);
    Some(Member::Named(ident))
}

impl Names {
    /// The alternatives that an error offers.
    fn offer(&self) -> String {
        let all: Vec<String> = self
            .names
            .iter()
            .map(|name| format!("`{{{}}}`", name.unraw()))
            .collect();
        match all.len() {
            0 => "but the function has no arguments".to_owned(),
            _ => format!("there is {}", all.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let names = ["self", "to", "pair", "r#type"].map(|name| match name.strip_prefix("r#") {
            Some(raw) => Ident::new_raw(raw, Span::call_site()),
            None => Ident::new(name, Span::call_site()),
        });
        let mut diagnostics = Diagnostics::default();
        let literal = LitStr::new(text, Span::call_site());
        let template = Template::parse(
            &literal,
            &Names {
                names: names.to_vec(),
            },
            &mut diagnostics,
        );
        let show = |piece: Piece| match piece {
            Piece::Text(text) => format!("text {text}"),
            Piece::Place { root, fields } => {
                fields
                    .iter()
                    .fold(format!("part {root}"), |path, field| match field {
                        Member::Named(name) => format!("{path}.{name}"),
                        Member::Unnamed(index) => format!("{path}.{}", index.index),
                    })
            }
        };
        template
            .map(|template| template.pieces.into_iter().map(show).collect())
            .ok_or_else(|| diagnostics.into_tokens().to_string())
    }

    #[test]
    fn placeholders_are_arguments_and_their_fields() {
        let pieces = |text| read(text).unwrap_or_else(|error| vec![error]);
        assert_eq!(
            pieces("user:{to}:{pair.0}"),
            ["text user:", "part to", "text :", "part pair.0"]
        );
        assert_eq!(pieces("{self.id.0.x}"), ["part self.id.0.x"]);
        assert_eq!(pieces("{{{to}}}"), ["text {", "part to", "text }"]);
        assert_eq!(pieces("{type}{to.type}"), ["part r#type", "part to.r#type"]);
        assert_eq!(pieces("{ to }"), ["part to"]);
        assert_eq!(pieces(""), Vec::<String>::new());
    }

    #[test]
    fn invalid_placeholder_is_rejected() {
        for (text, message) in [
            ("{}", "needs the name of an argument"),
            ("{0}", "not a number"),
            ("{to:?}", "without a format"),
            ("{to.len()}", "neither an argument"),
            ("{to[0]}", "neither an argument"),
            ("{pari}", "did you mean `pair`"),
            ("{colour}", "there is `{self}`, `{to}`, `{pair}`, `{type}`"),
            ("{to", "not closed"),
            ("to}", "closes nothing"),
            ("{.to}", "neither an argument"),
            ("{config::X}", "neither an argument"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
