//! The commands of Redis clients.

#[path = "../../../src/gateway/resp/command.rs"]
pub mod command;
#[path = "../../../src/gateway/resp/shown.rs"]
mod shown;
#[path = "../../../src/gateway/resp/throttle_command.rs"]
mod throttle_command;

/// The key of `CL.THROTTLE`, and its burst, count, period and quantity.
pub type ThrottleArguments = (String, [u64; 4]);

/// Parses the arguments of `CL.THROTTLE`.
///
/// # Errors
///
/// The message for the client.
pub fn parse_throttle(arguments: &[&[u8]]) -> Result<ThrottleArguments, String> {
    let command = throttle_command::ThrottleCommand::parse(arguments)?;
    let limit = command.limit;
    let numbers = [
        limit.max_burst,
        limit.count,
        limit.period_seconds,
        command.quantity,
    ];
    Ok((command.key, numbers))
}
