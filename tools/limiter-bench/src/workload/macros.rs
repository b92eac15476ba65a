//! Calls of an annotated function, compared with the same call without a macro.

use std::pin::pin;
use std::sync::Once;
use std::task::{Context, Poll, Waker};

use limiter_core::{Limiter, Rejection, token_limiter};

use super::spin::spin;
use super::{AMPLE, Pace};
use crate::contender::{Contender, DecideNow, Governor, OursInProcess};
use crate::keys::names;
use crate::sample::Sample;

const KEYS: usize = 1_000;

pub(super) fn turn(contender: Contender, pace: Pace) -> Sample {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        limiter_core::annotations::install(Limiter::in_process().build()).expect("nothing is installed yet");
    });
    let keys = names(KEYS);
    match contender {
        Contender::Ours => spin(KEYS, 1, pace, || |key: usize| called(annotated(&keys[key]))),
        Contender::ByHand => {
            let limits = OursInProcess::new(AMPLE);
            spin(KEYS, 1, pace, || |key: usize| limits.decide_now(&keys[key]))
        }
        Contender::Governor => {
            let limits = Governor::new(AMPLE);
            spin(KEYS, 1, pace, || |key: usize| limits.decide_now(&keys[key]))
        }
        other => panic!("{} annotates no functions", other.name()),
    }
}

#[token_limiter(name = "annotated", capacity = 100_000_000, rate = "1/30s", key = "{user}")]
async fn annotated(user: &str) -> Result<usize, Rejection> {
    Ok(user.len())
}

fn called(call: impl Future<Output = Result<usize, Rejection>>) -> bool {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.is_ok(),
        Poll::Pending => unreachable!("in process, a decision is ready at once"),
    }
}
