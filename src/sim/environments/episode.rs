//! Whose session it is: [`Episode`].

use hyper::StatusCode;

use super::super::call::Call;
use super::super::row::Row;
use super::super::service::Rejected;

/// Task and rollout that a session was opened for, as far as the client says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Episode {
    of_call: Option<(u64, u64)>,
    of_row: Option<(u64, u64)>,
}

impl Episode {
    /// What a call says by its id, and the row in its body.
    pub(super) fn of(call: &Call, row: Option<&Row>) -> Self {
        let of_row = row.filter(|row| row.is_numbered()).map(Row::key);
        Self {
            of_call: call.id().map(|id| (id.key.task, id.key.rollout)),
            of_row: of_row.map(|key| (key.task, key.rollout)),
        }
    }

    /// A later call is one of the same episode.
    ///
    /// # Errors
    /// It says that it is of another.
    pub(super) fn check(&self, other: &Self) -> Result<(), Rejected> {
        let pairs = [(self.of_call, other.of_call), (self.of_row, other.of_row)];
        for (opened, called) in pairs {
            if let (Some(opened), Some(called)) = (opened, called)
                && opened != called
            {
                let name = |(task, rollout)| format!("task {task}, rollout {rollout}");
                let why = format!(
                    "the session is that of {}, but the request is of {}: cookies belong to one episode",
                    name(opened),
                    name(called)
                );
                return Err(Rejected::detail(StatusCode::CONFLICT, why));
            }
        }
        Ok(())
    }
}
