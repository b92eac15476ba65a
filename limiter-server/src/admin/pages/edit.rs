//! The editor of a policy: form or text, preview, reason, save.
//!
//! A preview is required by the page, because the form that saves contains the text that was
//! previewed. A save ([`save`](crate::admin::pages::save)) names the revision that the author read.
//! If another author saved first, the page shows both versions, and the editor continues with the
//! text of this author on top of the newer revision. Tests: `tests/pages/edit.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::edit_form::EditForm;
use crate::admin::pages::edit_tabs::{EditTab, fields_of_text};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::key_fields::{KeyInput, fields_of};
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy::{PolicyLinks, PolicyRights};
use crate::admin::pages::policy_fields::{ALGORITHMS, PolicyFields, only_name};
use crate::admin::pages::policy_list::read;
use crate::admin::pages::preview::ShownPreview;
use crate::admin::pages::proposals;
use crate::admin::pages::views::PolicyView;
use crate::admin::pages::{links, render, render_unprocessable};

/// The name in the text of a new policy.
const NEW_NAME: &str = "new-policy";
/// The treatments of the usage of keys: name in the API, name for users.
const INHERITANCES: [(&str, &str); 3] = [
    ("as_is", "Keep it"),
    ("proportional", "Scale it: half left stays half left"),
    ("reset", "Reset it: all keys start unused"),
];

#[derive(Debug, Deserialize)]
pub(super) struct EditQuery {
    #[serde(rename = "as")]
    form: Option<String>,
    app: Option<String>,
}

#[derive(Template)]
#[template(path = "edit.html")]
struct EditTemplate {
    layout: Layout,
    links: PolicyLinks,
    name: String,
    is_new: bool,
    revision: i64,
    is_text: bool,
    fields: PolicyFields,
    text: String,
    /// The text whose policy the form shows; empty for the saved one.
    base: String,
    inheritance: String,
    /// The reason that the author entered.
    reason: String,
    /// The key whose state after the change is shown.
    key: String,
    /// The fields of the declared parts of the key; empty for one field.
    key_fields: Vec<KeyInput>,
    rights: PolicyRights,
    failure: Option<String>,
    preview: Option<ShownPreview>,
    /// The proposals that the change closes, as a sentence.
    closed_proposals: Option<String>,
    algorithms: &'static [(&'static str, &'static str)],
    inheritances: &'static [(&'static str, &'static str)],
}

impl EditTemplate {
    /// Returns the name as a segment of a path.
    fn name_path(&self) -> String {
        links::encode(&self.name)
    }

    /// Returns the treatment of usage as a heading.
    #[expect(clippy::unused_self, reason = "templates call methods")]
    fn treatment(&self, inheritance: &str) -> &'static str {
        match inheritance {
            "proportional" => "Left if scaled",
            "reset" => "Left if reset",
            _ => "Left if kept",
        }
    }

    /// Returns the reactions to a failure of the store: name in a text, name for users.
    fn failure_modes(&self) -> [(&'static str, &'static str); 5] {
        [
            ("", "default"),
            ("local", "limit per process"),
            ("fail_open", "allow"),
            ("fail_closed", "deny"),
            ("error", "report an error"),
        ]
    }
}

/// An open editor.
struct Editor<'a> {
    caller: &'a PageCaller,
    environment: &'a str,
    name: String,
    /// The saved policy; `None` for a new one.
    current: Option<PolicyView>,
}

impl<'a> Editor<'a> {
    async fn open(caller: &'a PageCaller, environment: &'a str, name: &str) -> Result<Self, PageFailure> {
        let current = match read(caller, environment, name).await {
            Ok(current) => Some(current),
            Err(failure) if failure.status == StatusCode::NOT_FOUND => None,
            Err(failure) => return Err(failure),
        };
        Ok(Self {
            caller,
            environment,
            name: name.to_owned(),
            current,
        })
    }

    /// Returns the names of the parts of keys in the saved policy.
    fn declared_parts(&self) -> Vec<String> {
        PolicyFields::of(&self.name, self.base()).key_part_names()
    }

    fn base(&self) -> &str {
        self.current.as_ref().map_or("", |current| current.toml.as_str())
    }

    async fn page(&self, fields: PolicyFields, text: Option<String>) -> Result<EditTemplate, PageFailure> {
        let title = match &self.current {
            Some(_) => format!("Edit {}", self.name),
            None => "New policy".to_owned(),
        };
        let apps = self.current.as_ref().and_then(|of| of.apps.as_deref());
        let rights = match &self.current {
            Some(_) => PolicyRights::new(self.caller, self.environment, apps),
            None => PolicyRights {
                may_edit: true,
                is_owner: true,
            },
        };
        let layout = Layout::of_environment(self.caller, self.environment, Section::Apps, title).await?;
        Ok(EditTemplate {
            layout,
            links: PolicyLinks::new(self.environment, &self.name, apps),
            name: self.name.clone(),
            is_new: self.current.is_none(),
            revision: self.current.as_ref().map_or(0, |of| of.revision),
            is_text: text.is_some(),
            fields,
            text: text.unwrap_or_default(),
            base: String::new(),
            inheritance: "as_is".to_owned(),
            reason: String::new(),
            key: String::new(),
            key_fields: fields_of(&self.declared_parts(), ""),
            rights,
            failure: None,
            preview: None,
            closed_proposals: None,
            algorithms: &ALGORITHMS,
            inheritances: &INHERITANCES,
        })
    }

    /// Returns the page with the content of a form.
    async fn page_of(&self, form: EditForm) -> Result<EditTemplate, PageFailure> {
        let (key, inheritance) = (form.entered_key(), form.inheritance().to_owned());
        let mut page = self.page(form.fields, form.text).await?;
        page.base = form.base.unwrap_or_default();
        page.inheritance = inheritance;
        page.reason = form.reason.unwrap_or_default();
        page.key_fields = fields_of(&self.declared_parts(), &key);
        page.key = key;
        if !page.is_new && form.revision > 0 {
            page.revision = form.revision;
        }
        Ok(page)
    }

    /// Reads the effect of a form from the API, also on a key.
    async fn preview(&self, form: &EditForm, key: &str) -> Result<ShownPreview, PageFailure> {
        let text = form.policy_text(&self.name, self.base());
        let text = text.map_err(PageFailure::unprocessable)?;
        let path = links::api(self.environment, &["policies", &self.name, "preview"]);
        let body = json!({ "toml": text, "inheritance": form.inheritance(), "key": key });
        let reply = self.caller.api.send(Method::POST, &path, &[], &body).await?;
        Ok(ShownPreview::new(reply.read()?, text))
    }
}

pub(super) async fn new(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<EditQuery>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let app = query.app.filter(|app| app != crate::admin::permissions::ALL_APPS);
    if !PolicyRights::new(&caller, &environment, app.as_ref().map(std::slice::from_ref)).is_owner {
        return Err(PageFailure::forbidden(
            "A new policy needs the role owner in its apps.",
        ));
    }
    let editor = Editor {
        caller: &caller,
        environment: &environment,
        name: String::new(),
        current: None,
    };
    let fields = PolicyFields::new(app.as_deref().unwrap_or_default());
    let base = PolicyFields::base(NEW_NAME, app.as_deref());
    let as_text = query.form.as_deref() == Some("toml");
    let text = as_text.then(|| fields.text(NEW_NAME, &base)).transpose();
    let text = text.map_err(PageFailure::unprocessable)?;
    let mut page = editor.page(fields, text).await?;
    page.base = base;
    Ok(render(&page))
}

pub(super) async fn edit(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    Query(query): Query<EditQuery>,
) -> Result<Response, PageFailure> {
    let current = read(&caller, &environment, &name).await?;
    let rights = PolicyRights::new(&caller, &environment, current.apps.as_deref());
    if !rights.may_edit {
        return Err(PageFailure::forbidden(
            "Changes need the role editor in all apps of the policy.",
        ));
    }
    let fields = PolicyFields::of(&name, &current.toml);
    // Texts belong to owners; the form has the numbers that an editor may change.
    let is_text = query.form.as_deref() == Some("toml") && rights.is_owner;
    let text = is_text.then(|| current.toml.clone());
    let editor = Editor {
        caller: &caller,
        environment: &environment,
        name,
        current: Some(current),
    };
    Ok(render(&editor.page(fields, text).await?))
}

/// Returns the preview of a new policy. Its name is a field, or that in the text.
pub(super) async fn preview_new(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<EditForm>,
) -> Result<Response, PageFailure> {
    let name = match &form.text {
        Some(text) => only_name(text).unwrap_or_default(),
        None => form.name.clone().unwrap_or_default().trim().to_owned(),
    };
    let mut editor = Editor {
        caller: &caller,
        environment: &environment,
        name: name.clone(),
        current: None,
    };
    caller.require_environment(&environment)?;
    if let Some(tab) = form.tab {
        return show_tab(&editor, tab, form).await;
    }
    let problem = match name.as_str() {
        "" if form.text.is_some() => Some("The text has no [policy.NAME], or several.".to_owned()),
        "" => Some("A name is missing.".to_owned()),
        name => {
            let existing = Editor::open(&caller, &environment, name).await?.current;
            existing.map(|_| format!("A policy with the name {name} exists."))
        }
    };
    if let Some(problem) = problem {
        editor.name = name;
        let mut page = editor.page_of(form).await?;
        page.failure = Some(problem);
        return Ok(render_unprocessable(&page));
    }
    show_preview(&editor, form).await
}

pub(super) async fn preview(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<EditForm>,
) -> Result<Response, PageFailure> {
    let editor = Editor::open(&caller, &environment, &name).await?;
    match form.tab {
        Some(tab) => show_tab(&editor, tab, form).await,
        None => show_preview(&editor, form).await,
    }
}

/// Shows the contents of the form in another tab. A text that the form cannot show, and a form that
/// is no text, stay as they are.
async fn show_tab(editor: &Editor<'_>, tab: EditTab, mut form: EditForm) -> Result<Response, PageFailure> {
    let converted = match (tab, form.text.take()) {
        (EditTab::Form, Some(text)) => match fields_of_text(&editor.name, &text) {
            Ok(fields) => {
                form.fields = fields;
                form.base = Some(text);
                Ok(())
            }
            Err(reason) => {
                form.text = Some(text);
                Err(reason)
            }
        },
        (EditTab::Toml, None) => {
            let name = if editor.name.is_empty() {
                NEW_NAME
            } else {
                &editor.name
            };
            form.policy_text(name, editor.base())
                .map(|text| form.text = Some(text))
        }
        (_, text) => {
            form.text = text;
            Ok(())
        }
    };
    let mut page = editor.page_of(form).await?;
    page.failure = converted.err();
    Ok(match page.failure {
        None => render(&page),
        Some(_) => render_unprocessable(&page),
    })
}

/// Shows the text that the API did not save, with its reason.
pub(super) async fn show_refused(
    caller: &PageCaller,
    (environment, name): (&str, &str),
    form: EditForm,
    failure: PageFailure,
) -> Result<Response, PageFailure> {
    let editor = Editor::open(caller, environment, name).await?;
    let mut page = editor.page_of(form).await?;
    page.failure = Some(failure.detail);
    Ok(render_unprocessable(&page))
}

async fn show_preview(editor: &Editor<'_>, form: EditForm) -> Result<Response, PageFailure> {
    let result = editor.preview(&form, &form.entered_key()).await;
    let mut page = editor.page_of(form).await?;
    match result {
        Ok(preview) => {
            page.preview = Some(preview);
            if let Some(current) = &editor.current {
                let open = proposals::open(editor.caller, editor.environment).await?;
                page.closed_proposals = proposals::closed_by_change(&open, current);
            }
            Ok(render(&page))
        }
        Err(failure) if failure.is_unprocessable() => {
            page.failure = Some(failure.detail);
            Ok(render_unprocessable(&page))
        }
        Err(failure) => Err(failure),
    }
}
