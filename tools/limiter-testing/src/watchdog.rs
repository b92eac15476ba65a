//! A small shell is the parent of the server and ends it with the test process.
//!
//! Destructors do not run for statics, nor on SIGKILL, but the kernel always closes a pipe. The
//! shell reads commands from a pipe whose other end belongs to the handle, and ends the server when
//! the pipe is closed. Only its parent can be certain that the pid still denotes the server.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SCRIPT: &str = include_str!("watchdog.sh");

/// A command to the shell about its server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ServerCommand {
    /// Starts a server on this port, in place of the one that runs.
    Start(u16),
    /// Kills the server and waits until it is gone.
    Kill,
    /// Suspends the server.
    Pause,
    /// Resumes a suspended server.
    Resume,
}

/// The handle of the shell; dropping it ends the server and removes its directory.
#[derive(Debug)]
pub(crate) struct Watchdog {
    dir: PathBuf,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    child: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Watchdog {
    /// Spawns the shell, which makes the directory but starts no server yet.
    pub(crate) fn spawn<A: AsRef<OsStr>>(program: &Path, args: &[A]) -> io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "limiter-watchdog"])
            .arg(std::env::temp_dir())
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C or a runner's timeout kills the process group of the tests; the shell must
            // survive it.
            .process_group(0)
            .spawn()?;
        let commands = child.stdin.take();
        let replies = child
            .stdout
            .take()
            .map(BufReader::new)
            .ok_or(ErrorKind::BrokenPipe)?;
        let mut shell = Shell {
            child,
            commands,
            replies,
        };
        let dir = PathBuf::from(shell.reply()?);
        Ok(Self {
            dir,
            shell: Mutex::new(shell),
        })
    }

    /// Returns the server's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the output of the running server.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("redis.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Executes a command; returns the pid of the server afterwards.
    pub(crate) fn execute(&self, command: ServerCommand) -> io::Result<Option<u32>> {
        let line = match command {
            ServerCommand::Start(port) => format!("start {port}\n"),
            ServerCommand::Kill => "kill\n".to_owned(),
            ServerCommand::Pause => "pause\n".to_owned(),
            ServerCommand::Resume => "resume\n".to_owned(),
        };
        let mut shell = self.shell();
        shell
            .commands
            .as_mut()
            .ok_or(ErrorKind::BrokenPipe)?
            .write_all(line.as_bytes())?;
        Ok(shell.reply()?.parse().ok())
    }

    fn shell(&self) -> MutexGuard<'_, Shell> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(shell.commands.take());
        // The end of the shell proves that server and directory are gone; a failure cannot be
        // reported.
        let _ = shell.child.wait();
    }
}

impl Shell {
    fn reply(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        line.strip_suffix('\n')
            .map(str::to_owned)
            .ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }
}

/// Returns the state of a process, in the letters of `ps`; `None` if there is no such process.
pub(crate) fn state(pid: u32) -> Option<char> {
    if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The state follows the program's name, which is in parentheses and may hold some itself.
        stat.rsplit_once(") ")?.1.chars().next()
    } else {
        let ps = Command::new("ps")
            .args(["-o", "stat=", "-p"])
            .arg(pid.to_string())
            .output()
            .ok()?;
        String::from_utf8_lossy(&ps.stdout).trim().chars().next()
    }
}

/// Returns whether a process runs or is suspended; false for a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}
