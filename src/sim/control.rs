//! What can be changed of an agent or a server while it serves: [`AgentChange`], and [`Control`], which does it.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::config::{OverCapacity, check_capacity};
use super::error::SimError;
use super::fault::FaultRates;
use super::latency::Latency;
use super::port::PortSwitch;
use super::station::Station;

/// What is to change of an agent or a server. What is missing stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentChange {
    /// Rollouts that it works on at a time; `Some(None)`, or `null`, for no limit. What is worked
    /// on when it falls is finished.
    #[serde(deserialize_with = "given")]
    pub capacity: Option<Option<usize>>,
    /// What happens to a request beyond the capacity.
    pub over_capacity: Option<OverCapacity>,
    /// Down, its port refuses connections, and those that were open are reset.
    pub down: Option<bool>,
    /// In place of all fault rates that it has. Faults at exact places stay.
    pub faults: Option<FaultRates>,
    /// Time from a request to its answer. Counts, as the faults do, for requests that arrive later.
    pub latency: Option<Latency>,
}

impl AgentChange {
    /// Checks what types cannot.
    ///
    /// # Errors
    /// The first setting that is out of range, by name.
    pub fn check(&self) -> Result<(), SimError> {
        check_capacity("capacity", self.capacity.flatten())?;
        let shape = self.latency.and_then(|latency| latency.bad_shape());
        shape.map_or(Ok(()), Err)?;
        Ok(self.faults.as_ref().map_or(Ok(()), FaultRates::check)?)
    }
}

/// What is there, even if it is null.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// What of an agent can be changed, as it is.
#[derive(Debug, Serialize)]
pub(super) struct AgentState {
    capacity: Option<usize>,
    over_capacity: OverCapacity,
    down: bool,
    faults: FaultRates,
    latency: Latency,
}

/// Changes an agent or a server, and its port.
#[derive(Debug)]
pub(super) struct Control {
    station: Arc<Station>,
    port: PortSwitch,
}

impl Control {
    pub(super) fn new(station: Arc<Station>, port: PortSwitch) -> Self {
        Self { station, port }
    }

    /// Where it receives requests.
    pub(super) fn station(&self) -> &Station {
        &self.station
    }

    /// Checks the change and makes it; when it returns, it is in force.
    ///
    /// # Errors
    /// A setting is out of range: nothing is changed. The port cannot be bound again: all but that
    /// is changed.
    pub(super) async fn change(&self, change: &AgentChange) -> Result<(), SimError> {
        change.check()?;
        self.station.change(change);
        match change.down {
            Some(down) => self.port.set(down).await,
            None => Ok(()),
        }
    }

    /// What can be changed, as it is.
    pub(super) fn state(&self) -> AgentState {
        let profile = self.station.profile();
        AgentState {
            capacity: profile.capacity,
            over_capacity: profile.over_capacity,
            down: self.port.is_down(),
            faults: profile.faults.clone(),
            latency: profile.latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> AgentChange {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn no_limit_is_not_the_same_as_no_change() {
        assert_eq!(read("{}"), AgentChange::default());
        assert_eq!(read(r#"{"capacity": null}"#).capacity, Some(None));
        assert_eq!(read(r#"{"capacity": 96}"#).capacity, Some(Some(96)));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (text, fragment) in [
            (r#"{"capacity": 0}"#, "capacity is 0"),
            (r#"{"faults": {"hang": 2}}"#, "rate of 'hang' is 2"),
        ] {
            let error = read(text).check().unwrap_err().to_string();
            assert!(error.contains(fragment), "{error}");
        }
    }
}
