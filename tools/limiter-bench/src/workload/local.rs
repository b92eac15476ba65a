//! Decisions in process.

use super::spin::spin;
use super::{AMPLE, Pace};
use crate::contender::{Contender, DecideNow, Governor, OursInProcess, TrypemaLocal};
use crate::keys::names;
use crate::sample::Sample;

pub(super) fn turn(keys: usize, threads: usize, contender: Contender, pace: Pace) -> Sample {
    match contender {
        Contender::Ours => decide(&OursInProcess::new(AMPLE), keys, threads, pace),
        Contender::Governor => decide(&Governor::new(AMPLE), keys, threads, pace),
        Contender::TrypemaLocal => decide(&TrypemaLocal::new(AMPLE), keys, threads, pace),
        other => panic!("{} does not decide in process", other.name()),
    }
}

fn decide(contender: &impl DecideNow, keys: usize, threads: usize, pace: Pace) -> Sample {
    let names = names(keys);
    spin(keys, threads, pace, || {
        |key: usize| contender.decide_now(&names[key])
    })
}
