use bytes::Bytes;

use super::arguments;
use super::episode::Episode;
use super::items::{ToolCall, tool_output};
use crate::retry::{Failure, FailureClass};
use crate::turn::TurnKind;

impl Episode<'_> {
    /// Calls a tool and takes its output into the conversation. Whatever status the tool answers with,
    /// the model sees its text: a wrong call is the model's to mend.
    ///
    /// # Errors
    /// The tool gave no whole answer, or none that is text: that says nothing of the model.
    pub(super) async fn call_tool(&mut self, call: &ToolCall) -> Result<(), Failure> {
        let output = match arguments::body(&call.arguments) {
            Ok(body) => {
                let answer = self
                    .post(&call.name, TurnKind::Tool, Bytes::from(body))
                    .await?;
                match std::str::from_utf8(&answer.body) {
                    Ok(text) => text.to_owned(),
                    Err(source) => {
                        let why =
                            format!("the output of tool '{}' is not UTF-8: {source}", call.name);
                        return Err(answer.refuse(FailureClass::Data, &why));
                    }
                }
            }
            Err(output) => output,
        };
        self.items.extend(tool_output(&call.call_id, &output));
        Ok(())
    }
}
