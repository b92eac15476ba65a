//! Changes that end by themselves: a trial, a suspension and a block.

use limiter_core::registry::{
    Block, BlockTarget, PolicyRegistry, Suspension, SuspensionMode, SuspensionScope,
};

use crate::demo::SUSPENDED_MINUTES;
use crate::demo::content::{ADMIN, HOUR, SavedEdit, author, request, save, timestamp};
use crate::overlay_text;
use crate::store::{DocumentKind, OVERLAYS, SaveRequest, Store, UsageKind, UsageSpan, UsageTotals};

/// The hours since the start of the trial, and until its end.
const TRIAL_HOURS: (i64, i64) = (2, 70);
/// The policy with a trial, and its text. `END` is the end of the trial.
const TRIAL: (&str, &str) = (
    "checkout",
    "algorithm = 'token_bucket'\ncapacity = 40\nrate = '20/s'\napps = ['checkout']\n\
     trial = { capacity = 20, rate = '5/s', until = END }\n",
);

/// Adds them to the content of the demonstration.
///
/// # Errors
///
/// The reason as one message.
pub async fn fill(store: &Store, namespace: &str, now: i64) -> Result<(), String> {
    start_trial(store, namespace, now).await?;
    suspend(store, namespace, now).await
}

/// Returns a trial of stricter numbers, with its decisions since the start.
async fn start_trial(store: &Store, namespace: &str, now: i64) -> Result<(), String> {
    let (policy, text) = TRIAL;
    let end = jiff::Timestamp::from_microsecond(now + TRIAL_HOURS.1 * HOUR);
    let end = end.map_err(|error| error.to_string())?;
    let text = text.replace("END", &end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let edit = SavedEdit {
        hours_ago: TRIAL_HOURS.0,
        author: "olivia",
        policy,
        text: &text,
        reason: "Would a quarter of the rate be enough?",
    };
    save(store, namespace, &edit, now).await?;
    let minute = UsageSpan::Minute.micros();
    for ago in 1..=TRIAL_HOURS.0 * 60 {
        let denied = 20 + (ago * 7) % 11;
        let totals = UsageTotals {
            allowed: 540 - denied,
            denied,
            ..UsageTotals::default()
        };
        let counts = [(policy.to_owned(), totals)];
        let added = store.add_usage(namespace, UsageKind::Trial, now - ago * minute, &counts);
        added.await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Returns a suspension of a policy, and a blocked address.
async fn suspend(store: &Store, namespace: &str, now: i64) -> Result<(), String> {
    let registry = PolicyRegistry::new();
    let scope = SuspensionScope::Policy("suggestions".to_owned());
    let end = timestamp(now + 2 * HOUR);
    let suspension = Suspension::new(scope, SuspensionMode::Off, end)
        .with_author("olivia")
        .with_reason("Compare the load without the limit");
    let block = Block::new(BlockTarget::Key("203.0.113.99".to_owned()))
        .until(timestamp(now + 20 * HOUR))
        .with_author(ADMIN)
        .with_reason("Copies the catalogue");
    let added = registry.suspend(suspension).and_then(|()| registry.block(block));
    added.map_err(|error| error.to_string())?;
    let request = SaveRequest {
        kind: DocumentKind::Overlays,
        body: overlay_text::of(&registry).map_err(|error| error.to_string())?,
        ..request(namespace, OVERLAYS)
    };
    let author = author(
        ADMIN,
        "block key=203.0.113.99: Copies the catalogue",
        now - SUSPENDED_MINUTES * UsageSpan::Minute.micros(),
    );
    let saved = store.save(&request, &author).await;
    saved.map(|_| ()).map_err(|error| error.to_string())
}
