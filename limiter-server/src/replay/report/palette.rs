//! The colours and text sizes of the report: those of the admin UI, from its style sheet.

/// The style sheet of the admin UI. It begins with the custom properties of both themes.
const ADMIN_STYLE: &str = include_str!("../../admin/pages/assets/style.css");
/// The first rule after the custom properties.
const FIRST_RULE: &str = "* { box-sizing";

/// Returns the custom properties of both themes, as rules for the root of a page or an image.
pub(super) fn palette() -> &'static str {
    let (start, end) = (ADMIN_STYLE.find(":root"), ADMIN_STYLE.find(FIRST_RULE));
    // Both exist: the test below.
    let range = start.zip(end).map(|(start, end)| start..end);
    range.and_then(|range| ADMIN_STYLE.get(range)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::palette;

    #[test]
    fn palette_has_colours_of_both_themes_and_sizes() {
        let palette = palette();
        for name in ["bg", "line", "text", "muted", "accent", "ok", "bad"] {
            let definition = format!("--{name}:");
            assert_eq!(palette.matches(&definition).count(), 2, "{name}");
        }
        assert_eq!(palette.matches("--size-").count(), 5);
        assert!(palette.ends_with("}\n}\n"), "{palette}");
    }
}
