use super::episode::{Episode, Next, Setup, within};
use crate::retry::{Failure, FailureClass};

/// Runs one sample at its own pace to its end, and gives its answer.
///
/// # Errors
/// The model or the environment failed.
pub async fn run_sample(setup: &Setup, mut episode: Episode) -> Result<Vec<u8>, Failure> {
    if episode.goes_on() {
        episode.begin(setup).await?;
    }
    while episode.goes_on() {
        if episode.generate(setup).await? == Next::End {
            break;
        }
        let environment = episode.environment().clone();
        let samples = &mut [episode.as_sample()];
        let step = environment.step(samples);
        let results = within(setup.limits.step_timeout, "step_timeout", step).await;
        let mut results = results.map_err(|failure| episode.step_failed(failure))?;
        let (Some(result), true) = (results.pop(), results.is_empty()) else {
            let why = "the environment did not give exactly one result for one sample";
            return Err(episode.step_failed(Failure::new(FailureClass::Data, why)));
        };
        let result = result.map_err(|failure| episode.step_failed(failure))?;
        episode.stepped(setup, result)?;
    }
    Ok(episode.into_answer())
}
