use std::time::Duration;

use super::StoreError;

/// What `work` on `object` gives, unless the store takes longer than `after`.
///
/// # Errors
/// Those of the work, or [`StoreError::NoAnswer`].
pub(super) async fn within<T>(
    after: Duration,
    action: &'static str,
    object: impl FnOnce() -> String,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answered = tokio::time::timeout(after, work).await;
    answered.unwrap_or_else(|_| {
        Err(StoreError::NoAnswer {
            action,
            object: object(),
            after,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_not_waited_for() {
        let silent = std::future::pending::<Result<(), StoreError>>();
        let object = || "s3://bucket/run.json".to_owned();
        let error = within(Duration::ZERO, "read", object, silent).await;
        assert_eq!(
            error.unwrap_err().to_string(),
            "cannot read s3://bucket/run.json: the store did not answer within 0s"
        );
    }
}
