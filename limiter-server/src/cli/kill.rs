//! `limiter-server kill`: suspends policies, with Redis only.
//!
//! The command edits the registry in Redis, so it works while no server runs and the database is
//! down, and beside policies that this version cannot read. Running servers import the change into
//! their history. Tests: `tests/overlays.rs` (`kill_needs_redis_only`).

use std::time::SystemTime;

use clap::Args;
use limiter_core::registry::{PolicyRegistry, RegistryError, Suspension, SuspensionMode, SuspensionScope};
use limiter_core::{Timestamp, parse_duration};

use crate::cli::author::AuthorArgs;
use crate::cli::print_text;
use crate::error_text::with_causes;
use crate::overlay_text;
use crate::publish::beside_errors::edit_overlays;
use crate::serve::limits;
use crate::settings::{StoreArgs, StoreSettings};

/// The arguments of `kill`.
#[derive(Args, Debug)]
pub(super) struct KillArgs {
    /// The suspended policies: all, app:NAME or policy:NAME.
    scope: SuspensionScope,
    /// off: every call is allowed; shadow: calls are decided, and allowed; deny: every call is
    /// denied.
    #[arg(long, required_unless_present = "end")]
    enforcement: Option<SuspensionMode>,
    /// Duration of the suspension.
    #[arg(long = "for", value_name = "DURATION", default_value = "1h")]
    duration: String,
    /// End of the suspension, such as 2030-01-01T00:00:00Z, in place of a duration.
    #[arg(long, value_name = "TIME", conflicts_with = "duration")]
    until: Option<String>,
    /// Reason, for other operators.
    #[arg(long, required_unless_present = "end")]
    reason: Option<String>,
    /// End the suspension of this scope now.
    #[arg(long, conflicts_with_all = ["enforcement", "reason", "duration", "until"])]
    end: bool,
    /// Create the registry if Redis has none. Without it, an empty Redis is an error, because a
    /// registry that Redis has lost would be replaced by the suspension alone.
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    author: AuthorArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl KillArgs {
    /// Returns the suspension; `None` to end it.
    fn suspension(&self) -> Result<Option<Suspension>, String> {
        let Some(mode) = self.enforcement.filter(|_| !self.end) else {
            return Ok(None);
        };
        let until: Timestamp = match &self.until {
            Some(text) => parse_time(text)?,
            None => {
                let duration = parse_duration(&self.duration).map_err(|error| error.to_string())?;
                (SystemTime::now() + duration).into()
            }
        };
        let suspension = Suspension::new(self.scope.clone(), mode, until);
        let suspension = suspension.with_author(self.author.name());
        Ok(Some(match &self.reason {
            Some(reason) => suspension.with_reason(reason.clone()),
            None => suspension,
        }))
    }
}

/// Parses a time as a registry does.
fn parse_time(text: &str) -> Result<Timestamp, String> {
    let quoted = serde_json::Value::from(text);
    let registry = format!("suspend = [{{ scope = 'all', enforcement = 'off', until = {quoted} }}]");
    let registry = PolicyRegistry::from_toml(&registry);
    let end = registry
        .ok()
        .and_then(|of| of.suspensions().first().map(Suspension::end));
    end.ok_or_else(|| format!("--until is `{text}`, expected a time such as 2030-01-01T00:00:00Z"))
}

/// Writes or ends the suspension, and prints the revision of the registry.
pub(super) fn run(args: &KillArgs) -> Result<(), String> {
    let suspension = args.suspension()?;
    if let Some(suspension) = &suspension
        && suspension.has_ended_at(SystemTime::now().into())
    {
        return Err(
            "the suspension has ended already, expected an end in the future: see --for and --until"
                .to_owned(),
        );
    }
    let settings = args.store.resolve().map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let revision = runtime.block_on(write(args, &settings, suspension.as_ref()))?;
    print_text(&match suspension {
        Some(suspension) => format!(
            "{}: {} until {} (revision {revision})\n",
            suspension.scope(),
            suspension.mode(),
            time_text(suspension.end())
        ),
        None => format!("{}: ended (revision {revision})\n", args.scope),
    })
}

async fn write(
    args: &KillArgs,
    settings: &StoreSettings,
    suspension: Option<&Suspension>,
) -> Result<u64, String> {
    let StoreSettings::Redis { namespace, .. } = settings else {
        return Err(
            "no Redis: set --redis, --redis-cluster or --redis-sentinel, or a file with the URL such as --redis-file"
                .to_owned(),
        );
    };
    let limiter = limits::build(settings, &PolicyRegistry::new())?;
    let redis = limiter.redis_registry().map_err(|error| error.to_string())?;
    let read = redis.read().await.map_err(|error| with_causes(&error))?;
    if read.is_none() && !args.create {
        return Err(format!(
            "the namespace {namespace} of Redis has no registry, expected that of the server in --namespace: publish the \
             policies first, or use --create if there never was one"
        ));
    }
    if let Some((_, text)) = &read {
        check_scope(args, text)?;
    }
    let change = |draft: &PolicyRegistry| match suspension {
        Some(suspension) => draft.suspend(suspension.clone()),
        None => {
            draft.end_suspension(&args.scope);
            Ok(())
        }
    };
    match redis.edit(change).await {
        // An unreadable policy of another program does not prevent a suspension.
        Err(RegistryError::Parse { .. }) => edit_overlays(&redis, change).await,
        edited => edited.map_err(|error| with_causes(&error)),
    }
}

/// Compares the scope with the names in the registry: a name with a mistake suspends nothing.
fn check_scope(args: &KillArgs, text: &str) -> Result<(), String> {
    let parsed = PolicyRegistry::from_toml(text);
    // The policies of a text with errors are not known.
    let knows_policies = parsed.is_ok();
    let Ok(registry) = parsed.or_else(|_| overlay_text::read_from(text)) else {
        return Ok(());
    };
    let active = registry.suspensions();
    if args.end && !active.iter().any(|of| *of.scope() == args.scope) {
        let scopes: Vec<String> = active.iter().map(|of| of.scope().to_string()).collect();
        return Err(format!(
            "no suspension of `{}` exists, expected one of: {}",
            args.scope,
            match scopes.is_empty() {
                true => "none".to_owned(),
                false => scopes.join(", "),
            }
        ));
    }
    if let SuspensionScope::Policy(name) = &args.scope
        && !args.end
        && knows_policies
        && registry.get(name).is_none()
    {
        eprintln!(
            "warning: the registry has no policy `{name}`; check the name. The suspension applies to a policy that is \
             published under it later"
        );
    }
    Ok(())
}

/// Returns a time as a registry writes it.
fn time_text(time: Timestamp) -> String {
    let registry = PolicyRegistry::new();
    let suspension = Suspension::new(SuspensionScope::All, SuspensionMode::Off, time);
    // One suspension of all is valid.
    let _ = registry.suspend(suspension);
    let text = registry.to_toml();
    let until = text.lines().find_map(|line| line.strip_prefix("until = "));
    until.unwrap_or_default().to_owned()
}
