//! `limiter-server token new`: creates a bearer token.

use std::time::SystemTime;

use clap::Args;

use crate::access::{AccessTable, Expiry, Scope, Token, TokenSecret};

/// The arguments of `token new`.
#[derive(Args, Debug)]
pub(super) struct NewToken {
    /// Name of the token in logs.
    #[arg(long)]
    name: String,
    /// Permitted action and target, such as check:domain=edge, refund:policy=search*, reset:* or
    /// namespace. Can be repeated.
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<String>,
    /// Days until the token expires.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Prints the secret, which is stored nowhere, and the entry for the settings file.
pub(super) fn new(args: NewToken) -> Result<(), String> {
    let scopes: Vec<Scope> = args
        .scopes
        .iter()
        .map(|scope| scope.parse())
        .collect::<Result<_, _>>()?;
    let secret = TokenSecret::generate()?;
    let expires = Expiry::days_after(SystemTime::now(), args.days);
    let token = Token::new(args.name.clone(), secret.hash(), scopes, expires);
    AccessTable::new(vec![token], Vec::new())?;
    eprintln!("The token is shown once. Clients send it as `authorization: Bearer TOKEN`:");
    println!("{}\n", secret.expose());
    eprintln!("Add this entry to limiter-server.toml; a running server reads it within a second:");
    // Strings of JSON without control characters are strings of TOML.
    println!(
        "[[token]]\nname = {}\nsha256 = \"{}\"\nscopes = {}\nexpires = {expires}",
        serde_json::Value::from(args.name),
        secret.hash(),
        serde_json::Value::from(args.scopes),
    );
    Ok(())
}
