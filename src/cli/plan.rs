use super::args::CollectArgs;
use super::exit::unless_gone;
use super::{Exit, simulated};
use crate::error::Error;
use crate::show;
use crate::sweep::Sweep;

/// `rollstream plan`: what `collect` would do. Sends nothing and writes nothing.
pub(super) async fn plan(args: CollectArgs) -> Result<Exit, Error> {
    let mut settings = args.settings()?;
    // As the sweep would: what is allowed is part of the plan.
    super::collect::raise_file_limit();
    let _sim = simulated::start(&mut settings).await?;
    let sweep = Sweep::prepare(settings).await?;
    super::collect::warn(&sweep);
    let plan = sweep.plan().await?;
    unless_gone(show::plan(&plan, args.display.json))?;
    Ok(Exit::Done)
}
