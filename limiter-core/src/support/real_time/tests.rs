use std::future::pending;
use std::thread;

use tokio::sync::oneshot;

use crate::support::real_time::*;

const MOMENT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn timeout_measures_real_time_and_holds_paused_time() {
    let (start, paused) = (Instant::now(), tokio::time::Instant::now());
    assert!(timeout(MOMENT, pending::<()>()).await.is_err());
    assert!(start.elapsed() >= MOMENT);
    assert_eq!(paused.elapsed(), Duration::ZERO);

    let (send, answer) = oneshot::channel();
    thread::spawn(move || {
        thread::sleep(MOMENT);
        send.send(7)
    });
    assert_eq!(timeout(LONG, answer).await, Ok(Ok(7)));
    assert_eq!(paused.elapsed(), Duration::ZERO);
    // Afterwards the time advances again.
    tokio::time::sleep(LONG).await;
    assert!(paused.elapsed() >= LONG);
}

#[tokio::test(start_paused = true)]
async fn sleep_measures_real_time_and_lets_paused_time_advance() {
    let start = Instant::now();
    sleep(MOMENT).await;
    assert!(start.elapsed() >= MOMENT);
    let sleeping = pin!(sleep(LONG * 60));
    let first = tokio::select! {
        () = sleeping => "real",
        () = tokio::time::sleep(LONG) => "paused",
    };
    assert_eq!(first, "paused");
}

#[tokio::test]
async fn timers_detect_time_paused_during_wait() {
    let start = Instant::now();
    let pause = async {
        tokio::task::yield_now().await;
        tokio::time::pause();
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = async {
            assert!(timeout(MOMENT, pending::<()>()).await.is_err());
            assert!(start.elapsed() >= MOMENT);
            sleep(MOMENT).await;
        } => {}
        () = pause => {}
    }
    assert!(start.elapsed() >= 2 * MOMENT);
}

#[tokio::test]
async fn running_time_is_not_detected_as_paused() {
    for _ in 0..1_000 {
        assert!(!is_paused(Instant::now()));
        tokio::task::yield_now().await;
    }
}

/// A wait without a bound must not end as a timeout while the process runs.
#[test]
fn longest_timer_exceeds_lifetime_of_process() {
    let start = Instant::now();
    assert!(after(start, Duration::MAX) - start > Duration::from_secs(10 * 365 * 86_400));
}
