use arrow::array::{
    Array, ArrowPrimitiveType, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array,
    PrimitiveArray, RecordBatch, StringViewArray,
};

use crate::outcome::AnswerFields;
use crate::schema;

/// The columns of a batch of outcomes that are counted.
pub(super) struct Columns<'a> {
    pub(super) agents: &'a StringViewArray,
    pub(super) classes: &'a StringViewArray,
    pub(super) errors: &'a StringViewArray,
    pub(super) tasks: &'a Int64Array,
    pub(super) rollouts: &'a Int64Array,
    pub(super) statuses: Option<&'a Int32Array>,
    pub(super) terminal: &'a BooleanArray,
    pub(super) rewards: &'a Float64Array,
    pub(super) answers: Option<&'a StringViewArray>,
    pub(super) masked: Option<&'a BooleanArray>,
    pub(super) input_tokens: Option<&'a Int64Array>,
    pub(super) output_tokens: Option<&'a Int64Array>,
    pub(super) server_ms: Option<&'a Float64Array>,
}

/// Returns the value of a row, if it has one.
pub(super) fn valid<T: ArrowPrimitiveType>(
    column: &PrimitiveArray<T>,
    row: usize,
) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

impl<'a> Columns<'a> {
    pub(super) fn of(outcomes: &'a RecordBatch) -> Option<Self> {
        let column = |name| outcomes.column_by_name(name);
        Some(Self {
            agents: column(schema::AGENT_NAME)?.as_string_view_opt()?,
            classes: column(schema::OUTCOME)?.as_string_view_opt()?,
            errors: column(schema::ERROR)?.as_string_view_opt()?,
            tasks: column(schema::TASK_INDEX)?.as_primitive_opt()?,
            rollouts: column(schema::ROLLOUT_INDEX)?.as_primitive_opt()?,
            statuses: column(schema::HTTP_STATUS).and_then(|column| column.as_primitive_opt()),
            terminal: column(schema::TERMINAL)?.as_boolean_opt()?,
            rewards: column(schema::REWARD)?.as_primitive_opt()?,
            answers: column(schema::ANSWER).and_then(|column| column.as_string_view_opt()),
            masked: column(schema::MASKED).and_then(|column| column.as_boolean_opt()),
            input_tokens: column(schema::INPUT_TOKENS).and_then(|column| column.as_primitive_opt()),
            output_tokens: column(schema::OUTPUT_TOKENS)
                .and_then(|column| column.as_primitive_opt()),
            server_ms: column(schema::SERVER_MS).and_then(|column| column.as_primitive_opt()),
        })
    }

    /// Returns the reward of an answer, also of one that is a failure.
    pub(super) fn any_reward(&self, row: usize) -> Option<f64> {
        valid(self.rewards, row).or_else(|| {
            let answers = self.answers.filter(|answers| answers.is_valid(row))?;
            AnswerFields::parse(answers.value(row)).ok()?.reward
        })
    }
}
