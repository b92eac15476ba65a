//! The rate limiters under comparison, behind one trait for asynchronous limiters and one for
//! limiters in process.

mod cell;
mod governor;
mod incrby;
mod ours;
mod script;
mod trypema;

use std::sync::Arc;

pub(crate) use self::governor::{Governor, governor_quota};
pub(crate) use ours::{OursInProcess, policy};
pub(crate) use trypema::TrypemaLocal;

use crate::environment::Address;
use cell::RedisCell;
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
    /// The module redis-cell, if its path is given.
    RedisCell,
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
            Self::RedisCell => "redis-cell",
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
            Self::RedisCell,
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

/// A number of permits and a time: a bucket refills them in this time, a window has this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) permits: u32,
    pub(crate) seconds: u64,
}

/// The algorithm of this project's limiter for a workload; other contenders have only one.
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

/// The configuration of a contender.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) address: Address,
    /// The prefix of the contender's keys in Redis.
    pub(crate) prefix: String,
    pub(crate) quota: Quota,
    pub(crate) mode: Mode,
    /// The number of limits in one decision.
    pub(crate) limits: usize,
    pub(crate) keys: Arc<[String]>,
}

impl Setup {
    /// Returns the names of keys in Redis, for contenders that leave them to the application.
    pub(crate) fn stored_keys(&self) -> Vec<String> {
        self.keys
            .iter()
            .map(|key| format!("{}:{{{key}}}", self.prefix))
            .collect()
    }
}

/// Decides for the key of this number, and returns whether the call is allowed.
///
/// A contender that cannot decide panics, because a failed call is not a decision.
pub(crate) trait Decide: Send + Sync + 'static {
    fn decide(&self, key: usize) -> impl Future<Output = bool> + Send;
}

/// As [`Decide`], without waiting.
pub(crate) trait DecideNow: Send + Sync + 'static {
    #[expect(
        clippy::ptr_arg,
        reason = "governor looks up the type of its keys, which owns them"
    )]
    fn decide_now(&self, key: &String) -> bool;
}

/// Adapts a contender in process to the asynchronous trait.
#[derive(Debug)]
struct InProcessAdapter<D> {
    contender: D,
    keys: Arc<[String]>,
}

impl<D: DecideNow> Decide for InProcessAdapter<D> {
    async fn decide(&self, key: usize) -> bool {
        self.contender.decide_now(&self.keys[key])
    }
}

/// A generic operation on a contender.
pub(crate) trait ContenderVisitor {
    type Answer;

    async fn meet<D: Decide>(self, contender: D) -> Self::Answer;
}

/// Makes a contender and introduces it; `None` where it cannot take part.
pub(crate) async fn introduce<G: ContenderVisitor>(
    contender: Contender,
    setup: Setup,
    guest: G,
) -> Option<G::Answer> {
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
        Contender::RedisCell => guest.meet(RedisCell::connect(&setup).await).await,
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
            guest.meet(InProcessAdapter { contender, keys }).await
        }
        Contender::Governor => {
            let contender = Governor::new(quota);
            guest.meet(InProcessAdapter { contender, keys }).await
        }
        Contender::TowerGovernor | Contender::AxumGovernor | Contender::ByHand | Contender::Bare => {
            return None;
        }
    })
}
