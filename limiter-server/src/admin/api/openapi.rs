//! The OpenAPI document, made from the list of routes and the types that their handlers read.
//!
//! Answers are JSON objects. The guide describes their fields.

mod contents;

use axum::Json;
use serde_json::{Map, Value, json};

use crate::admin::api::openapi::contents::SchemaList;
use crate::admin::api::routes::{ROUTES, RouteAccess};

/// Returns the OpenAPI document.
pub(super) async fn openapi() -> Json<Value> {
    let mut paths = Map::new();
    let mut schemas = SchemaList::default();
    for route in &ROUTES {
        let item = paths
            .entry(format!("/admin/v1{}", route.path))
            .or_insert_with(|| json!({}));
        let names = route
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let mut parameters: Vec<Value> = names
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        parameters.extend(contents::parameters(route));
        let security = match route.access {
            RouteAccess::Open => json!([]),
            _ => json!([{ "token": [] }, { "session": [] }]),
        };
        let headers = match route.method {
            "GET" => json!({ "ETag": { "schema": { "type": "string" } } }),
            _ => json!({}),
        };
        let success = json!({
            "description": "success",
            "headers": headers,
            "content": { "application/json": { "schema": { "type": "object" } } },
        });
        let mut operation = json!({
            "summary": route.summary,
            "parameters": parameters,
            "security": security,
            "responses": {
                "2XX": success,
                "default": {
                    "description": "a problem document",
                    "content": { "application/problem+json": { "schema": { "type": "object" } } },
                },
            },
        });
        let body = contents::body(route, &mut schemas);
        if let (Some(schema), Some(fields)) = (body, operation.as_object_mut()) {
            let content = json!({ "application/json": { "schema": schema } });
            let body = json!({ "required": true, "content": content });
            fields.insert("requestBody".to_owned(), body);
        }
        item[route.method.to_lowercase()] = operation;
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": { "title": "limiter-server admin", "version": "1" },
        "paths": paths,
        "components": {
            "schemas": schemas.into_json(),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "session": { "type": "apiKey", "in": "cookie", "name": crate::admin::auth::COOKIE },
            },
        },
    }))
}
