//! The OpenAPI document, made from the list of routes.

use axum::Json;
use serde_json::{Map, Value, json};

use crate::admin::api::routes::{ROUTES, RouteAccess};

/// The OpenAPI document.
pub(super) async fn openapi() -> Json<Value> {
    let mut paths = Map::new();
    for route in ROUTES {
        let item = paths
            .entry(format!("/admin/v1{}", route.path))
            .or_insert_with(|| json!({}));
        let names = route
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameters: Vec<Value> = names
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        let security = match route.access {
            RouteAccess::Open => json!([]),
            _ => json!([{ "token": [] }, { "session": [] }]),
        };
        item[route.method.to_lowercase()] = json!({
            "summary": route.summary,
            "parameters": parameters,
            "security": security,
            "responses": {
                "2XX": { "description": "success" },
                "default": { "description": "a problem document", "content": { "application/problem+json": {} } },
            },
        });
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": { "title": "limiter-server admin", "version": "1" },
        "paths": paths,
        "components": { "securitySchemes": {
            "token": { "type": "http", "scheme": "bearer" },
            "session": { "type": "apiKey", "in": "cookie", "name": crate::admin::auth::COOKIE },
        } },
    }))
}
