//! The session of one RESP connection, and its commands besides `CL.THROTTLE`.
//!
//! Redis clients send `HELLO`, `AUTH`, `CLIENT`, `COMMAND`, `SELECT` and `PING` when they connect.
//! The session answers them from its own state, and returns the decision of `CL.THROTTLE` as a
//! future. The client is validated before each command of the list except `AUTH` and `QUIT`, so
//! that an expired or removed token is refused on an open connection.
//!
//! Tests: `tests/resp.rs`.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};

use tracing::Instrument as _;

use crate::access::Client;
use crate::gateway::Gateway;
use crate::gateway::resp::reply::{Protocol, Reply, access_error};
use crate::gateway::resp::shown::shown;
use crate::gateway::resp::throttle_command::ThrottleCommand;
use crate::listener::call_span;

/// The commands: name, arity with the name (negative: at least), flags, position of the key.
const COMMANDS: [(&str, i64, &[&str], i64); 9] = [
    ("auth", -2, &["noscript", "fast", "no_auth"], 0),
    ("cl.throttle", -5, &["write", "fast"], 1),
    ("client", -2, &["noscript"], 0),
    ("command", -1, &["fast"], 0),
    ("echo", 2, &["fast"], 0),
    ("hello", -1, &["noscript", "fast", "no_auth"], 0),
    ("ping", -1, &["fast"], 0),
    ("quit", -1, &["fast", "no_auth"], 0),
    ("select", 2, &["fast"], 0),
];

/// A reply, or the decision that makes it.
pub(super) enum PendingReply {
    Ready(Reply),
    Decides {
        command: ThrottleCommand,
        decision: Pin<Box<dyn Future<Output = Reply> + Send>>,
    },
}

/// The result of a command.
pub(super) struct CommandOutcome {
    pub(super) reply: PendingReply,
    /// The version in which the reply is encoded.
    pub(super) protocol: Protocol,
    /// True if the connection closes after the reply.
    pub(super) closes: bool,
}

/// The state of a connection.
pub(super) struct Session {
    gateway: Gateway,
    /// The token of the last AUTH, or else the certificate. Its scopes are decided by each command.
    client: Client,
    protocol: Protocol,
    id: i64,
    name: Vec<u8>,
}

impl Session {
    pub(super) fn new(gateway: Gateway, client: Client) -> Self {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        Self {
            gateway,
            client,
            protocol: Protocol::Resp2,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: Vec::new(),
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Runs a command, which has at least a name.
    pub(super) fn run(&mut self, command: &[&[u8]]) -> CommandOutcome {
        let (name, arguments) = match command.split_first() {
            Some((name, arguments)) => (name.to_ascii_uppercase(), arguments),
            None => (Vec::new(), command),
        };
        let reply = match (&*name, arguments) {
            (b"QUIT", _) => Reply::OK,
            (b"AUTH", [token] | [_, token]) => self.authenticate(token),
            (b"HELLO", _) => self.hello(arguments),
            (b"CL.THROTTLE" | b"PING" | b"ECHO" | b"CLIENT" | b"COMMAND" | b"SELECT", _)
                if let Some(refusal) = self.refusal() =>
            {
                refusal
            }
            (b"CL.THROTTLE", _) => match ThrottleCommand::parse(arguments) {
                Ok(command) => {
                    let (gateway, client) = (self.gateway.clone(), self.client.clone());
                    let decision = command.clone();
                    let decision = async move { decision.run(&gateway, &client).await };
                    let decision = decision.instrument(call_span::of_command("CL.THROTTLE"));
                    return CommandOutcome {
                        reply: PendingReply::Decides {
                            command,
                            decision: Box::pin(decision),
                        },
                        protocol: self.protocol,
                        closes: false,
                    };
                }
                Err(message) => Reply::error(format!("ERR {message}")),
            },
            (b"PING", []) => Reply::Simple("PONG"),
            (b"PING" | b"ECHO", [message]) => Reply::Bulk(message.to_vec()),
            (b"CLIENT", _) => self.client(arguments),
            (b"COMMAND", _) => describe_commands(arguments),
            // Clients select the database 0 of a URL such as redis://host/0.
            (b"SELECT", [b"0"]) => Reply::OK,
            (b"SELECT", [index]) => Reply::error(format!(
                "ERR database is {}, expected 0, the only one",
                shown(index)
            )),
            (b"PING" | b"ECHO" | b"AUTH" | b"SELECT", _) => wrong_arity(&name),
            _ => Reply::error(format!(
                "ERR unknown command {}, expected CL.THROTTLE, PING, ECHO, AUTH, HELLO, CLIENT, COMMAND, SELECT \
                 or QUIT",
                shown(command.first().copied().unwrap_or_default())
            )),
        };
        CommandOutcome {
            reply: PendingReply::Ready(reply),
            // HELLO answers in the version that it selects.
            protocol: self.protocol,
            closes: &*name == b"QUIT",
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`
    fn hello(&mut self, arguments: &[&[u8]]) -> Reply {
        let mut protocol = self.protocol;
        let (mut token, mut name) = (None, None);
        if let Some((version, mut options)) = arguments.split_first() {
            protocol = match *version {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ => {
                    return Reply::error(format!(
                        "NOPROTO protocol version is {}, expected 2 or 3",
                        shown(version)
                    ));
                }
            };
            while let Some((option, rest)) = options.split_first() {
                options = match (&*option.to_ascii_uppercase(), rest) {
                    (b"AUTH", [_, new, rest @ ..]) => {
                        token = Some(*new);
                        rest
                    }
                    (b"SETNAME", [new, rest @ ..]) => {
                        name = Some(new.to_vec());
                        rest
                    }
                    _ => {
                        return Reply::error(format!(
                            "ERR option of HELLO is {}, expected AUTH user password or SETNAME name",
                            shown(option)
                        ));
                    }
                };
            }
        }
        // A rejected option keeps the client, as in Redis.
        if let Some(error @ Reply::Error(_)) = token.map(|token| self.authenticate(token)) {
            return error;
        }
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        self.protocol = protocol;
        self.name = name.unwrap_or_else(|| std::mem::take(&mut self.name));
        let version = match protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        };
        Reply::Map(vec![
            (Reply::text("server"), Reply::text("limiter-server")),
            (Reply::text("version"), Reply::text(env!("CARGO_PKG_VERSION"))),
            (Reply::text("proto"), Reply::Integer(version)),
            (Reply::text("id"), Reply::Integer(self.id)),
            (Reply::text("mode"), Reply::text("standalone")),
            (Reply::text("role"), Reply::text("master")),
            (Reply::text("modules"), Reply::Array(Vec::new())),
        ])
    }

    /// `AUTH [user] token`. The name of the user is ignored: a token names its client.
    fn authenticate(&mut self, token: &[u8]) -> Reply {
        if self.gateway.access().table().accepts_anonymous() {
            return Reply::error("ERR AUTH called without any password configured, expected no AUTH");
        }
        let client = Client::of_secret(&String::from_utf8_lossy(token));
        match self.gateway.access().validate(&client) {
            Ok(()) => {
                self.client = client;
                Reply::OK
            }
            Err(denial) => Reply::error(format!("WRONGPASS {denial}")),
        }
    }

    /// Returns the error of a connection whose client is not valid, or not any more.
    fn refusal(&self) -> Option<Reply> {
        let denial = self.gateway.access().validate(&self.client).err()?;
        Some(access_error(&denial))
    }

    /// `CLIENT SETINFO`, `SETNAME`, `GETNAME` and `ID`.
    fn client(&mut self, arguments: &[&[u8]]) -> Reply {
        let Some((subcommand, rest)) = arguments.split_first() else {
            return wrong_arity(b"CLIENT");
        };
        match (&*subcommand.to_ascii_uppercase(), rest) {
            (b"SETINFO", [_, _]) => Reply::OK,
            (b"SETNAME", [name]) => {
                self.name = name.to_vec();
                Reply::OK
            }
            (b"GETNAME", []) if self.name.is_empty() => Reply::Null,
            (b"GETNAME", []) => Reply::Bulk(self.name.clone()),
            (b"ID", []) => Reply::Integer(self.id),
            _ => Reply::error(format!(
                "ERR subcommand of CLIENT is {}, expected SETINFO attribute value, SETNAME name, GETNAME or ID",
                shown(subcommand)
            )),
        }
    }
}

fn wrong_arity(name: &[u8]) -> Reply {
    let name = name.to_ascii_lowercase();
    Reply::error(format!(
        "ERR wrong number of arguments for {} command",
        shown(&name)
    ))
}

/// `COMMAND`, `COMMAND COUNT`, `COMMAND DOCS` and `COMMAND INFO`.
fn describe_commands(arguments: &[&[u8]]) -> Reply {
    let describe = |(name, arity, flags, key): &(&str, i64, &[&str], i64)| {
        Reply::Array(vec![
            Reply::text(*name),
            Reply::Integer(*arity),
            Reply::Array(flags.iter().map(|flag| Reply::text(*flag)).collect()),
            Reply::Integer(*key),
            Reply::Integer(*key),
            Reply::Integer(*key),
        ])
    };
    let Some((subcommand, names)) = arguments.split_first() else {
        return Reply::Array(COMMANDS.iter().map(describe).collect());
    };
    match &*subcommand.to_ascii_uppercase() {
        b"COUNT" => Reply::Integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX)),
        // Without documentation redis-cli shows no hints.
        b"DOCS" => Reply::Map(Vec::new()),
        b"INFO" if names.is_empty() => Reply::Array(COMMANDS.iter().map(describe).collect()),
        b"INFO" => {
            let find = |name: &&[u8]| {
                let mut all = COMMANDS.iter();
                all.find(|(of, ..)| of.as_bytes().eq_ignore_ascii_case(name))
            };
            let described = names.iter().map(|name| find(name).map_or(Reply::Null, describe));
            Reply::Array(described.collect())
        }
        _ => Reply::error(format!(
            "ERR subcommand of COMMAND is {}, expected COUNT, DOCS or INFO",
            shown(subcommand)
        )),
    }
}
