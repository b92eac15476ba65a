//! `limiter-server export`: the policies, rules, suspensions and blocks in force as a policy file.

use clap::Args;

use crate::cli::explain::read_text;
use crate::cli::print_text;
use crate::settings::StoreArgs;

/// The Redis of the exported registry.
#[derive(Args, Debug)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// Prints the published text, with the fields that this version does not know.
pub(super) fn run(args: &ExportArgs) -> Result<(), String> {
    let (_, text) = read_text(&args.store)?;
    print_text(&text)
}
