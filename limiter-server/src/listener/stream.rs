//! A connection that ends when its peer makes no progress.
//!
//! HTTP/1 has three phases: a request arrives, a request is being answered, the connection is idle
//! between requests. The first must end within the read timeout, however many bytes arrive, and the
//! last within the idle timeout. HTTP/2, which begins with a preface, and other protocols have one
//! rule: bytes must arrive within the idle timeout, and HTTP/2 pings an idle peer before that. A
//! write that makes no progress ends with the idle timeout as well. Tests: `tests/attacks.rs` (slow
//! and half-open connections), `tests/listeners.rs`.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;

use crate::settings::ListenerLimits;

/// The answer to an HTTP/1 request that arrives too slowly.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The first bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A deadline for timeouts that exceed the range of the clock.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// A socket of any kind.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Returns the address of the peer of a TCP connection that is still open.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Tls(stream) => stream.get_ref().0.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Writes as much as fits in the buffers of the system. The peer may have left.
    pub(super) fn try_write(&self, bytes: &[u8]) {
        let _ = match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            // Plain bytes would break the session.
            Self::Tls(_) => Ok(0),
        };
    }
}

/// The phase of a connection, which the protocol sets.
#[derive(Clone, Debug)]
pub(super) struct Phase(Arc<AtomicU8>);

/// A request arrives.
const RECEIVING: u8 = 0;
/// A request is being answered.
const ANSWERING: u8 = 1;
/// No request has begun.
const IDLE: u8 = 2;
/// The protocol has no phases.
const ANY: u8 = 3;

impl Phase {
    pub(super) fn answering(&self) {
        self.set(ANSWERING);
    }

    pub(super) fn idle(&self) {
        self.set(IDLE);
    }

    pub(super) fn without_phases(&self) {
        self.set(ANY);
    }

    pub(super) fn has_phases(&self) -> bool {
        self.get() != ANY
    }

    fn set(&self, phase: u8) {
        self.0.store(phase, Ordering::Relaxed);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A socket whose reads and writes end with an error when the peer makes no progress.
#[derive(Debug)]
pub struct TimedStream {
    socket: Socket,
    read_timeout: Duration,
    idle_timeout: Duration,
    phase: Phase,
    /// The rest of the preface that makes this a connection without phases; `None` if the first
    /// bytes were others.
    preface: Option<&'static [u8]>,
    /// The phase that reads have observed last.
    timed: u8,
    /// The end of the phase `timed`. `None` until a read waits for the peer, so that other phases
    /// do not read the clock.
    read_deadline: Option<Instant>,
    /// Ends at or before `read_deadline`, and is set again when it ended before. Requests thus do
    /// not set a timer each, which would lock the timers of the runtime.
    read_timer: Pin<Box<Sleep>>,
    /// The waker that the timer wakes.
    timer_waker: Option<Waker>,
    /// The longest time for which the timer is set: the shortest timeout of the phases.
    timer_period: Duration,
    /// The deadline of the pending write, if there is one.
    write_deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub(super) fn new(socket: Socket, limits: &ListenerLimits) -> Self {
        Self {
            socket,
            read_timeout: limits.read_timeout,
            idle_timeout: limits.idle_timeout,
            phase: Phase(Arc::new(AtomicU8::new(ANY))),
            preface: None,
            timed: ANY,
            read_deadline: None,
            read_timer: Box::pin(tokio::time::sleep_until(after(limits.idle_timeout))),
            timer_waker: None,
            timer_period: limits.idle_timeout,
            write_deadline: None,
        }
    }

    /// Applies the phases of HTTP/1, unless the connection begins with the preface of HTTP/2.
    pub(super) fn with_phases(mut self) -> Self {
        self.preface = Some(HTTP2_PREFACE);
        self.timer_period = self.read_timeout.min(self.idle_timeout);
        self.read_timer.as_mut().reset(after(self.timer_period));
        self.begin(RECEIVING);
        self
    }

    /// Lets the peer be silent for this time.
    pub(crate) fn with_idle_timeout(mut self, idle_timeout: Duration) -> Self {
        self.idle_timeout = idle_timeout;
        self.timer_period = idle_timeout;
        self.begin(ANY);
        self
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.clone()
    }

    /// Begins a phase. Its time begins with the first read that waits.
    fn begin(&mut self, phase: u8) {
        if self.timed != phase {
            self.phase.set(phase);
        }
        self.timed = phase;
        self.read_deadline = None;
    }

    /// Compares bytes with the preface of HTTP/2. A client may send no request for any time after
    /// it, and does not read answers of HTTP/1.
    fn compare_with_preface(&mut self, received: &[u8]) {
        let Some(preface) = self.preface.take() else {
            return;
        };
        match received.starts_with(preface) {
            true => self.begin(ANY),
            false => self.preface = preface.strip_prefix(received),
        }
    }

    /// Returns the end of the phase. Its time begins now if no earlier read has waited.
    fn read_deadline(&mut self) -> Instant {
        if let Some(deadline) = self.read_deadline {
            return deadline;
        }
        let deadline = after(match self.timed {
            RECEIVING => self.read_timeout,
            _ => self.idle_timeout,
        });
        self.read_deadline = Some(deadline);
        if self.read_timer.deadline() > deadline {
            self.read_timer.as_mut().reset(deadline);
            self.timer_waker = None;
        }
        deadline
    }

    /// Ends a read that has waited for too long.
    fn poll_read_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The time of an answer has no limit here. The HTTP library does not read again when the
        // answer has been sent, so the timer must wake the task to observe the next phase.
        let deadline = (self.timed != ANSWERING).then(|| self.read_deadline());
        let wakes_task = |waker: &Waker| waker.will_wake(cx.waker());
        if self.timer_waker.as_ref().is_some_and(wakes_task) && !self.read_timer.is_elapsed() {
            // Another poll would register the same waker.
            return Poll::Pending;
        }
        while self.read_timer.as_mut().poll(cx).is_ready() {
            let next = after(self.timer_period);
            let next = match deadline {
                Some(deadline) if Instant::now() >= deadline => return Poll::Ready(Err(self.end_read(cx))),
                Some(deadline) => next.min(deadline),
                None => next,
            };
            self.read_timer.as_mut().reset(next);
        }
        self.timer_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end_read(&mut self, cx: &mut Context<'_>) -> io::Error {
        let reason = match self.timed {
            RECEIVING => "read_timeout",
            _ => "idle_timeout",
        };
        metrics::counter!("limiter_server_closed_connections_total", "reason" => reason).increment(1);
        if self.timed == RECEIVING {
            // The peer may have left, and the connection ends in any case.
            let _ = Pin::new(&mut self.socket).poll_write(cx, TOO_SLOW);
        }
        io::ErrorKind::TimedOut.into()
    }

    fn poll_write_deadline<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let timeout = self.idle_timeout;
        let deadline = self
            .write_deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        match deadline.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Returns the time after a timeout that begins now.
fn after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + FOREVER)
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let phase = this.phase.get();
        if phase != this.timed {
            this.begin(phase);
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.socket).poll_read(cx, buf) {
            Poll::Pending => this.poll_read_deadline(cx),
            ready => {
                if buf.filled().len() > before {
                    this.compare_with_preface(buf.filled().get(before..).unwrap_or_default());
                    match phase {
                        IDLE => this.begin(RECEIVING),
                        ANY => this.begin(ANY),
                        // More bytes do not extend the time of a request.
                        _ => {}
                    }
                }
                ready
            }
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.poll_write_deadline(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.poll_write_deadline(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.poll_write_deadline(cx, ended)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, buffers);
        self.poll_write_deadline(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Forwards a method to the stream of each kind of socket.
macro_rules! forward {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket.get_mut() {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => Pin::new(stream).poll_write_vectored(cx, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
