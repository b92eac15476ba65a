//! The retention of records in the control plane.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::settings::SettingsError;
use crate::settings::duration::duration;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The retention of records in the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionSettings {
    /// Counts of decisions per minute.
    pub usage_minutes: Duration,
    /// Counts of decisions per hour.
    pub usage_hours: Duration,
    /// Samples of denials, by hour.
    pub denials: Duration,
    /// Quotas of keys, suspensions, blocks and tokens, after their end.
    pub ended: Duration,
    /// Entries of the audit.
    pub audit: Duration,
    /// The directory to which old entries of the audit are moved. Without it, they stay in the
    /// database.
    pub audit_export: Option<PathBuf>,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self {
            usage_minutes: HOUR * 48,
            // 13 months.
            usage_hours: DAY * 396,
            denials: DAY * 30,
            ended: DAY * 30,
            audit: DAY * 400,
            audit_export: None,
        }
    }
}

/// The table `[retention]` of the settings file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetentionTable {
    usage_minutes: Option<String>,
    usage_hours: Option<String>,
    denials: Option<String>,
    ended: Option<String>,
    audit: Option<String>,
    audit_export: Option<PathBuf>,
}

impl RetentionTable {
    pub(super) fn resolve(&self) -> Result<RetentionSettings, SettingsError> {
        let default = RetentionSettings::default();
        let time = |setting, text: &Option<String>, default| {
            text.as_deref()
                .map_or(Ok(default), |text| duration(setting, text))
        };
        Ok(RetentionSettings {
            usage_minutes: time(
                "retention.usage_minutes",
                &self.usage_minutes,
                default.usage_minutes,
            )?,
            usage_hours: time("retention.usage_hours", &self.usage_hours, default.usage_hours)?,
            denials: time("retention.denials", &self.denials, default.denials)?,
            ended: time("retention.ended", &self.ended, default.ended)?,
            audit: time("retention.audit", &self.audit, default.audit)?,
            audit_export: self.audit_export.clone(),
        })
    }
}
