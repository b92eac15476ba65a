//! Who decides: ours and others, behind one trait for those that have to be waited for and one for
//! those in process.

mod governor;
mod incrby;
mod ours;
mod script;
mod trypema;

use std::sync::Arc;

pub(crate) use self::governor::{Governor, governor_quota};
pub(crate) use ours::{OursInProcess, policy};
pub(crate) use trypema::TrypemaLocal;

use crate::stage::Address;
use incrby::Incrby;
use ours::Ours;
use script::{ScriptMultiplexed, ScriptPool};
use trypema::{TrypemaHybrid, TrypemaRedis};

/// All contenders, by the names that the tables have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Ours,
    /// INCRBY on one multiplexed connection, which is the least that a decision in Redis can be.
    Incrby,
    ScriptMultiplexed,
    ScriptBb8,
    TrypemaRedis,
    TrypemaHybrid,
    TrypemaLocal,
    Governor,
    TowerGovernor,
    AxumGovernor,
    /// Ours without an attribute or a layer around it.
    ByHand,
    /// No limit at all.
    Bare,
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Incrby => "incrby",
            Self::ScriptMultiplexed => "script-multiplexed",
            Self::ScriptBb8 => "script-bb8",
            Self::TrypemaRedis => "trypema-redis",
            Self::TrypemaHybrid => "trypema-hybrid",
            Self::TrypemaLocal => "trypema-local",
            Self::Governor => "governor",
            Self::TowerGovernor => "tower_governor",
            Self::AxumGovernor => "axum-governor",
            Self::ByHand => "by-hand",
            Self::Bare => "bare",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [
            Self::Ours,
            Self::Incrby,
            Self::ScriptMultiplexed,
            Self::ScriptBb8,
            Self::TrypemaRedis,
            Self::TrypemaHybrid,
            Self::TrypemaLocal,
            Self::Governor,
            Self::TowerGovernor,
            Self::AxumGovernor,
            Self::ByHand,
            Self::Bare,
        ]
        .into_iter()
        .find(|contender| contender.name() == name)
    }
}

/// So many permits at once; a bucket has them back after the time, a window holds them for as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) permits: u32,
    pub(crate) seconds: u64,
}

/// What ours is to do for a workload; the others have one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Bucket,
    Window,
    Leased,
}

impl Mode {
    pub(crate) const ALL: [(Self, &'static str); 3] = [
        (Self::Bucket, "bucket"),
        (Self::Window, "window"),
        (Self::Leased, "leased"),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bucket => "bucket",
            Self::Window => "window",
            Self::Leased => "leased",
        }
    }
}

/// What a contender has to know before it can decide.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) address: Address,
    /// Keeps what one contender stores apart from what the others do.
    pub(crate) prefix: String,
    pub(crate) quota: Quota,
    pub(crate) mode: Mode,
    /// How many limits one decision has to respect.
    pub(crate) limits: usize,
    pub(crate) keys: Arc<[String]>,
}

impl Setup {
    /// The names of keys in Redis, for contenders that leave them to the application.
    pub(crate) fn stored_keys(&self) -> Vec<String> {
        self.keys
            .iter()
            .map(|key| format!("{}:{{{key}}}", self.prefix))
            .collect()
    }
}

/// Decides for the key of this number, and says whether the call is allowed.
///
/// A contender that cannot decide panics: a call that failed is no decision.
pub(crate) trait Decide: Send + Sync + 'static {
    fn decide(&self, key: usize) -> impl Future<Output = bool> + Send;
}

/// The same without waiting.
pub(crate) trait DecideNow: Send + Sync + 'static {
    #[expect(
        clippy::ptr_arg,
        reason = "governor looks up the type of its keys, which owns them"
    )]
    fn decide_now(&self, key: &String) -> bool;
}

/// A contender in process, where one has to be waited for.
#[derive(Debug)]
struct AtOnce<D> {
    contender: D,
    keys: Arc<[String]>,
}

impl<D: DecideNow> Decide for AtOnce<D> {
    async fn decide(&self, key: usize) -> bool {
        self.contender.decide_now(&self.keys[key])
    }
}

/// What is done with a contender, of whatever type it is.
pub(crate) trait Guest {
    type Answer;

    async fn meet<D: Decide>(self, contender: D) -> Self::Answer;
}

/// Makes a contender and introduces it; `None` where it cannot take part.
pub(crate) async fn introduce<G: Guest>(contender: Contender, setup: Setup, guest: G) -> Option<G::Answer> {
    let (quota, keys) = (setup.quota, Arc::clone(&setup.keys));
    Some(match contender {
        Contender::Ours => guest.meet(Ours::connect(setup).await).await,
        Contender::Incrby if setup.address.is_cluster() => {
            guest
                .meet(Incrby::new(setup.address.cluster().await, &setup))
                .await
        }
        Contender::Incrby => {
            guest
                .meet(Incrby::new(setup.address.multiplexed().await, &setup))
                .await
        }
        Contender::ScriptMultiplexed if setup.address.is_cluster() => {
            guest
                .meet(ScriptMultiplexed::new(setup.address.cluster().await, &setup).await)
                .await
        }
        Contender::ScriptMultiplexed => {
            guest
                .meet(ScriptMultiplexed::new(setup.address.multiplexed().await, &setup).await)
                .await
        }
        Contender::ScriptBb8 => guest.meet(ScriptPool::connect(&setup).await).await,
        Contender::TrypemaRedis => guest.meet(TrypemaRedis::connect(&setup).await).await,
        Contender::TrypemaHybrid => guest.meet(TrypemaHybrid::connect(&setup).await).await,
        Contender::TrypemaLocal => {
            let contender = TrypemaLocal::new(quota);
            guest.meet(AtOnce { contender, keys }).await
        }
        Contender::Governor => {
            let contender = Governor::new(quota);
            guest.meet(AtOnce { contender, keys }).await
        }
        Contender::TowerGovernor | Contender::AxumGovernor | Contender::ByHand | Contender::Bare => {
            return None;
        }
    })
}
