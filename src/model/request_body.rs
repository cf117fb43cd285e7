use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::retry::{Failure, FailureClass};

/// Fields that would make an answer of another shape than the one that is read.
const NEVER_SENT: [&str; 2] = ["stream", "stream_options"];

/// A request to a model, written as text.
#[derive(Debug)]
pub(super) struct RequestBody(Vec<u8>);

impl RequestBody {
    /// Begins a request to a model; it is not named where `model` is empty.
    pub(super) fn new(model: &str) -> Result<Self, Failure> {
        let mut body = Self(vec![b'{']);
        if !model.is_empty() {
            body.field("model", model)?;
        }
        Ok(body)
    }

    /// Adds a field.
    pub(super) fn field(
        &mut self,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), Failure> {
        self.name(name)?;
        self.value(value)
    }

    /// Adds a field that is a list.
    pub(super) fn list<T: Serialize>(
        &mut self,
        name: &str,
        items: impl Iterator<Item = T>,
    ) -> Result<(), Failure> {
        self.name(name)?;
        self.0.push(b'[');
        for (position, item) in items.enumerate() {
            if position > 0 {
                self.0.push(b',');
            }
            self.value(&item)?;
        }
        self.0.push(b']');
        Ok(())
    }

    /// Adds all fields but those in `own`, which the request has set or will set itself.
    pub(super) fn parameters(
        &mut self,
        parameters: &Map<String, Value>,
        own: &[&str],
    ) -> Result<(), Failure> {
        let is_own = |name: &str| own.contains(&name) || NEVER_SENT.contains(&name);
        for (name, value) in parameters.iter().filter(|(name, _)| !is_own(name)) {
            self.field(name, value)?;
        }
        Ok(())
    }

    /// Adds how a message is sampled: `sampling` without `own`, the name of a model that has been
    /// named, and its `stop` where the turn has texts of its own.
    pub(super) fn sampling(
        &mut self,
        sampling: &Map<String, Value>,
        stop: Option<&[String]>,
        own: &[&str],
    ) -> Result<(), Failure> {
        let named = (self.0.len() > 1).then_some("model");
        let stopped = stop.map(|_| "stop");
        let own: Vec<&str> = own.iter().copied().chain(named).chain(stopped).collect();
        self.parameters(sampling, &own)?;
        match stop {
            Some(stop) if !stop.is_empty() => self.field("stop", stop),
            _ => Ok(()),
        }
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> Bytes {
        self.0.push(b'}');
        self.0.into()
    }

    fn name(&mut self, name: &str) -> Result<(), Failure> {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.value(name)?;
        self.0.push(b':');
        Ok(())
    }

    fn value(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value).map_err(|source| {
            let why = format!("a request to a model could not be written: {source}");
            Failure::new(FailureClass::Data, why)
        })
    }
}
