//! Style sheet and scripts, with a hash of their content in the path.
//!
//! A browser keeps them without asking again, since changed content has another path. They are
//! compressed once at the first use. Tests: below.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::admin::pages::compression::accepts_gzip;

/// The source files: name, extension, type, content.
const SOURCES: [(&str, &str, &str, &str); 6] = [
    ("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")),
    (
        "style",
        "css",
        "text/css; charset=utf-8",
        include_str!("assets/style.css"),
    ),
    (
        "app",
        "js",
        "text/javascript; charset=utf-8",
        include_str!("assets/app.js"),
    ),
    (
        "plot",
        "js",
        "text/javascript; charset=utf-8",
        include_str!("assets/plot.js"),
    ),
    (
        "uplot",
        "js",
        "text/javascript; charset=utf-8",
        include_str!("assets/uplot/uPlot.iife.min.js"),
    ),
    (
        "uplot-style",
        "css",
        "text/css; charset=utf-8",
        include_str!("assets/uplot/uPlot.min.css"),
    ),
];

static FILES: LazyLock<Vec<AssetFile>> = LazyLock::new(|| SOURCES.map(AssetFile::new).into());
static LINKS: LazyLock<AssetLinks> = LazyLock::new(AssetLinks::new);

#[derive(Debug)]
struct AssetFile {
    path: String,
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
    compressed: Vec<u8>,
}

/// The paths of the files, for the templates.
#[derive(Debug)]
pub(super) struct AssetLinks {
    pub(super) style: String,
    pub(super) app: String,
    pub(super) icon: String,
    pub(super) plot: String,
    pub(super) uplot: String,
    pub(super) uplot_style: String,
}

impl AssetFile {
    fn new(
        (name, extension, content_type, content): (&'static str, &str, &'static str, &'static str),
    ) -> Self {
        let digest = Sha256::digest(content.as_bytes());
        let hash: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // A write to memory does not fail.
        let _ = encoder.write_all(content.as_bytes());
        Self {
            path: format!("{name}.{hash}.{extension}"),
            name,
            content_type,
            content,
            compressed: encoder.finish().unwrap_or_default(),
        }
    }
}

impl AssetLinks {
    fn new() -> Self {
        let path = |name: &str| {
            let file = FILES.iter().find(|file| file.name == name);
            file.map(|file| format!("/assets/{}", file.path))
                .unwrap_or_default()
        };
        Self {
            style: path("style"),
            app: path("app"),
            icon: path("icon"),
            plot: path("plot"),
            uplot: path("uplot"),
            uplot_style: path("uplot-style"),
        }
    }
}

/// Returns the paths of the files.
pub(super) fn links() -> &'static AssetLinks {
    &LINKS
}

pub(super) async fn read(Path(path): Path<String>, request: HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.path == path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::VARY, "accept-encoding"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match accepts_gzip(&request) {
        true => (
            headers,
            [(header::CONTENT_ENCODING, "gzip")],
            file.compressed.as_slice(),
        )
            .into_response(),
        false => (headers, file.content).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    const STYLE: &str = include_str!("assets/style.css");

    /// Returns the properties of the first block after a text.
    fn block(start: &str) -> &str {
        let (_, rest) = STYLE.split_once(start).unwrap();
        rest.split('}').next().unwrap()
    }

    #[test]
    fn colours_are_one_accent_and_three_states_in_both_themes() {
        let colours = |block: &str| -> BTreeSet<String> {
            let lines = block.lines().filter_map(|line| line.trim().split_once(": #"));
            lines
                .map(|(name, _)| name.trim_start_matches("--").to_owned())
                .collect()
        };
        let greys = ["bg", "surface", "line", "text", "muted", "on-accent"];
        let expected = greys.into_iter().chain(["accent", "ok", "waiting", "bad"]);
        let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
        let (light, dark) = (block("\n:root {"), block("dark) {\n  :root {"));
        assert_eq!(colours(light), expected);
        assert_eq!(colours(dark), expected);
        // All other colours are those of the themes.
        let rest = STYLE.replace(light, "").replace(dark, "");
        let is_literal = |line: &&str| line.contains(": #") || line.contains("rgb") || line.contains("hsl");
        assert_eq!(
            rest.lines().filter(is_literal).collect::<Vec<_>>(),
            Vec::<&str>::new()
        );
    }

    #[test]
    fn texts_have_five_sizes() {
        let sizes = block("\n:root {").matches("--size-").count();
        assert_eq!(sizes, 5);
        let lines = STYLE.lines().filter(|line| line.contains("font-size:"));
        let other = lines.filter(|line| !line.contains("var(--size-") && !line.contains("100%"));
        assert_eq!(other.collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
