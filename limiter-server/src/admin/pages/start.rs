//! The first run after the administrator exists: the name of the environment, and the first
//! policies.
//!
//! API routes: `PUT /namespaces/{namespace}`, and below it `PUT policies/example` for the example,
//! which is created only without other policies, and `POST import`. Test: `tests/pages/start.rs`.

use askama::Template;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::numbers::grouped;
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::diff::{DiffLine, diff_lines};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::import::{ImportPlan, ImportedPolicy};
use crate::admin::pages::layout::Layout;
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::proposals;
use crate::admin::pages::views::NamespaceView;
use crate::admin::pages::{links, render, render_unprocessable, see};
use crate::admin::permissions::ALL_APPS;
use crate::store::NamespaceLook;

/// The app and the policy of the example.
const EXAMPLE: &str = "example";
/// Ten calls of one key are 7 allowed and 3 denied ones.
const EXAMPLE_TEXT: &str = "[policy.example]\nalgorithm = \"token_bucket\"\ncapacity = 7\nrate = \"7/h\"\n\
                            apps = [\"example\"]\nnote = \"The example of the first run\"\n";

#[derive(Debug, Deserialize)]
pub(super) struct LookForm {
    label: String,
    colour: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ImportForm {
    yaml: String,
    /// The revisions that the preview has shown, by [`ImportPlan::basis`].
    basis: Option<String>,
}

#[derive(Template)]
#[template(path = "start.html")]
struct StartTemplate {
    layout: Layout,
    namespace: NamespaceView,
    colours: &'static [&'static str],
    policies: usize,
    environment_href: String,
    failure: Option<String>,
    yaml: String,
}

#[derive(Template)]
#[template(path = "import.html")]
struct ImportTemplate {
    layout: Layout,
    yaml: String,
    basis: String,
    warnings: Vec<String>,
    policies: Vec<ImportedPolicy>,
    rules: Vec<DiffLine>,
    /// The proposals that the import closes, as a sentence.
    closed_proposals: Option<String>,
}

/// Returns the environment of this server's first run.
async fn environment(caller: &PageCaller) -> Result<NamespaceView, PageFailure> {
    if !caller.actor.is_server_admin {
        return Err(PageFailure::forbidden(
            "The first run needs an administrator of the server.",
        ));
    }
    let namespaces = caller.namespaces().await?;
    namespaces.into_iter().next().ok_or_else(PageFailure::not_found)
}

async fn page(
    caller: &PageCaller,
    failure: Option<String>,
    yaml: String,
) -> Result<StartTemplate, PageFailure> {
    let namespace = environment(caller).await?;
    Ok(StartTemplate {
        layout: Layout::of_server(caller, "First run").await?,
        colours: &NamespaceLook::COLOURS,
        policies: all_policies(caller, &namespace.name).await?.len(),
        environment_href: links::page(&namespace.name, &["apps"]),
        namespace,
        failure,
        yaml,
    })
}

pub(super) async fn show(caller: PageCaller) -> Result<Response, PageFailure> {
    Ok(render(&page(&caller, None, String::new()).await?))
}

pub(super) async fn set_look(
    caller: PageCaller,
    PageForm(form): PageForm<LookForm>,
) -> Result<Response, PageFailure> {
    let namespace = environment(&caller).await?;
    let path = links::path(&["namespaces", &namespace.name]);
    let body = json!({ "label": form.label.trim(), "colour": form.colour });
    caller.api.send(Method::PUT, &path, &[], &body).await?;
    Ok(see("/setup/start"))
}

/// Creates the example, never beside other policies.
pub(super) async fn create_example(caller: PageCaller) -> Result<Response, PageFailure> {
    let namespace = environment(&caller).await?.name;
    if !all_policies(&caller, &namespace).await?.is_empty() {
        let detail = "The environment has policies, so the example is not created.";
        return Err(PageFailure::new(StatusCode::CONFLICT, detail));
    }
    let path = links::api(&namespace, &["policies", EXAMPLE]);
    let body = json!({ "toml": EXAMPLE_TEXT, "reason": "example of the first run" });
    let condition = [(axum::http::header::IF_NONE_MATCH, "*".to_owned())];
    caller.api.send(Method::PUT, &path, &condition, &body).await?;
    Ok(see(&links::page(&namespace, &["apps", EXAMPLE, "connect"])))
}

/// Shows the effect of an import.
pub(super) async fn preview_import(
    caller: PageCaller,
    PageForm(form): PageForm<ImportForm>,
) -> Result<Response, PageFailure> {
    let namespace = environment(&caller).await?.name;
    let plan = match ImportPlan::new(&caller, &namespace, &form.yaml).await {
        Ok(plan) => plan,
        Err(failure) if failure.is_unprocessable() => {
            let page = page(&caller, Some(failure.detail), form.yaml).await?;
            return Ok(render_unprocessable(&page));
        }
        Err(failure) => return Err(failure),
    };
    let open = proposals::open(&caller, &namespace).await?;
    Ok(render(&ImportTemplate {
        closed_proposals: proposals::closed(&open, |of| plan.closes(of)),
        layout: Layout::of_server(&caller, "Import").await?,
        basis: plan.basis(),
        yaml: form.yaml,
        rules: diff_lines(&plan.rules_diff()),
        warnings: plan.warnings,
        policies: plan.policies,
    }))
}

pub(super) async fn save_import(
    caller: PageCaller,
    PageForm(form): PageForm<ImportForm>,
) -> Result<Response, PageFailure> {
    let namespace = environment(&caller).await?.name;
    let plan = ImportPlan::new(&caller, &namespace, &form.yaml).await?;
    if form.basis.is_some_and(|basis| basis != plan.basis()) {
        let detail =
            "Another user has saved a policy of the configuration, or rules: preview the import again.";
        return Err(PageFailure::new(StatusCode::CONFLICT, detail));
    }
    plan.save(&caller, &namespace).await?;
    Ok(see(
        &(links::page(&namespace, &["apps", ALL_APPS]) + "?notice=saved")
    ))
}
