//! What the model says: [`Prompt::said`], a function of the conversation and the seed, and where it ends ([`End`]).

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::agent::{Row, append_filler};
use super::super::draws::{Draws, digest};
use super::super::plan::{Profile, RowDifficulty};
use super::super::verifier::{last_words, number};
use super::conversation::{Conversation, words};

/// The streams of draws: per question, for all conversations that begin with it; per conversation, for all its
/// turns; and per turn.
const OF_QUESTION: u64 = 5;
const OF_CONVERSATION: u64 = 6;
const OF_TURN: u64 = 7;

/// The largest number of turns that is drawn.
const MOST_TURNS: usize = 4;

/// What the model is asked.
#[derive(Debug)]
pub(super) struct Prompt<'a> {
    /// What was said before.
    pub conversation: Conversation<'a>,
    /// The tools that it may call.
    pub tools: &'a [Tool],
    /// Whether it may make several calls at once.
    pub parallel: bool,
    /// The request's seed.
    pub seed: Option<u64>,
}

/// What the model says.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    /// Its reasoning before the text or the calls.
    pub reasoning: Option<String>,
    /// The text, which needs no escapes in JSON; empty if it calls tools.
    pub text: String,
    /// Parallel calls of tools.
    pub calls: Vec<MadeCall>,
    /// Identifies the answer.
    pub id: u64,
}

/// A call that the model makes.
#[derive(Debug, PartialEq)]
pub(super) struct MadeCall {
    /// The tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
    /// Identifies the call.
    pub id: String,
}

impl Said {
    pub(super) fn tokens(&self) -> u64 {
        let calls = self.calls.iter();
        let calls: u64 = calls.map(|call| 1 + words(&call.arguments)).sum();
        self.reasoning_tokens() + words(&self.text) + calls
    }

    /// Cuts the answer before the first stop string, or after `most` tokens, whichever comes first. Calls
    /// that do not fit are dropped.
    pub(super) fn limit(&mut self, stop: &Stop, most: Option<u64>) -> End {
        let calls_fit = self.calls.is_empty() || most.is_none_or(|most| self.tokens() <= most);
        if !calls_fit {
            self.calls.clear();
        }
        let thought = self.reasoning_tokens();
        match most {
            Some(most) if most < thought => {
                if let Some(reasoning) = &mut self.reasoning {
                    let end = end_of_word(reasoning, most);
                    cut(reasoning, &Stop::None, end);
                }
                self.text.clear();
                End::Length
            }
            _ if !calls_fit => End::Length,
            most => {
                let end = most.and_then(|most| end_of_word(&self.text, most - thought));
                cut(&mut self.text, stop, end)
            }
        }
    }

    pub(super) fn reasoning_tokens(&self) -> u64 {
        self.reasoning.as_deref().map_or(0, words)
    }
}

impl Prompt<'_> {
    /// Returns what the model says. A judge that is asked for a score gives one. With tools, it calls some of them in every turn of the conversation, and answers
    /// after that; without tools, it answers in the last turn.
    pub(super) fn said(&self, profile: &Profile) -> Said {
        let Conversation {
            start,
            digest: said_before,
            turns: spoken,
            ..
        } = self.conversation;
        let seed = self.seed.unwrap_or(profile.seed);
        let question = digest(start.as_bytes());
        let mut of_question = Draws::keyed(profile.seed, &[OF_QUESTION, question]);
        let mut of_conversation = Draws::keyed(seed, &[OF_CONVERSATION, question]);
        let mut of_turn = Draws::keyed(seed, &[OF_TURN, question, said_before, spoken]);

        let drawn = 1 + of_conversation.below(MOST_TURNS) as u64;
        let turns = profile.turns.unwrap_or(drawn);
        let chance = profile.success_probability(RowDifficulty::Medium, of_question.normal());
        let correct = of_conversation.unit() < chance;
        let id = of_turn.next_u64();
        let usable = |tool: &&Tool| tool.name().is_some();
        let tools: Vec<&Tool> = self.tools.iter().filter(usable).collect();
        let reasoning = (of_turn.below(3) == 0).then(|| some_words(&mut of_turn, 40));
        let mut said = Said {
            reasoning,
            text: String::new(),
            calls: Vec::new(),
            id,
        };
        if !tools.is_empty() && spoken < turns {
            let several = self.parallel && of_turn.below(3) == 0;
            let count = if several { 2 + of_turn.below(2) } else { 1 };
            let calls = (0..count).filter_map(|number| {
                let tool = tools.get(of_turn.below(tools.len()))?;
                Some(MadeCall {
                    name: tool.name()?.to_owned(),
                    arguments: arguments(tool.parameters(), &mut of_turn).to_string(),
                    id: format!("call_{id:016x}_{number}"),
                })
            });
            said.calls = calls.collect();
        } else if tools.is_empty() && spoken + 1 < turns {
            said.text = some_words(&mut of_turn, 60);
        } else if start.contains("`SCORE: `") {
            said.text = format!("It was read with care.\nSCORE: {}", u8::from(correct));
        } else {
            said.text = last_words(right_answer(start), correct, of_turn);
        }
        said
    }
}

/// Returns at most about `most` words of filler.
fn some_words(draws: &mut Draws, most: usize) -> String {
    let mut text = Vec::new();
    append_filler(&mut text, 6 * (5 + draws.below(most)), draws.next_u64());
    // The first and the last word may be cut.
    let text = String::from_utf8(text).unwrap_or_default();
    let whole = text.split_once(' ').map_or("", |(_, rest)| rest);
    let whole = whole.rsplit_once(' ').map_or(whole, |(rest, _)| rest);
    whole.trim().to_owned()
}

/// A tool that the model may call, as either API writes it.
#[derive(Debug, Deserialize)]
pub(super) struct Tool {
    name: Option<String>,
    #[serde(default)]
    parameters: Value,
    function: Option<Box<Tool>>,
}

impl Tool {
    /// Returns its name; `None` for a tool that is not a function.
    fn name(&self) -> Option<&str> {
        let function = self.function.as_deref().unwrap_or(self);
        function.name.as_deref()
    }

    /// Returns the JSON schema of its parameters.
    fn parameters(&self) -> &Value {
        &self.function.as_deref().unwrap_or(self).parameters
    }
}

/// Returns arguments that a JSON schema allows. It understands types, `enum`, `required`, nested objects and
/// lists.
fn arguments(schema: &Value, draws: &mut Draws) -> Value {
    match value(schema, draws) {
        object @ Value::Object(_) => object,
        _ => json!({}),
    }
}

fn value(schema: &Value, draws: &mut Draws) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        let choice = choices.get(draws.below(choices.len()));
        return choice.cloned().unwrap_or_default();
    }
    match schema["type"].as_str() {
        Some("integer") => json!(draws.below(100)),
        Some("number") => json!(draws.below(397) as f64 / 4.0),
        Some("boolean") => json!(draws.below(2) == 0),
        Some("null") => Value::Null,
        Some("array") => {
            let items = 0..draws.below(3);
            items.map(|_| value(&schema["items"], draws)).collect()
        }
        Some("object") => object(schema, draws),
        _ => {
            let word = WORDS.get(draws.below(WORDS.len()));
            json!(word.copied().unwrap_or_default())
        }
    }
}

fn object(schema: &Value, draws: &mut Draws) -> Value {
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let mut object = Map::new();
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if is_required(name) || draws.below(2) == 0 {
            object.insert(name.clone(), value(schema, draws));
        }
    }
    Value::Object(object)
}

const WORDS: [&str; 12] = [
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "juniper",
    "kelp", "lagoon",
];

/// The example tasks, whose answers the model knows.
static KNOWN: LazyLock<HashMap<String, f64>> = LazyLock::new(|| {
    let tasks = include_str!("../../../tests/data/example_tasks.jsonl").lines();
    tasks.filter_map(question_and_answer).collect()
});

fn question_and_answer(task: &str) -> Option<(String, f64)> {
    let answer = Row::parse(task).ok()?.expected()?;
    let task: Value = serde_json::from_str(task).ok()?;
    let question = task["responses_create_params"]["input"][0]["content"].as_str()?;
    Some((question.to_owned(), answer))
}

/// Returns the right answer to a question: that of an example task in the text, or the value of a sum such as `3 + 4`.
fn right_answer(text: &str) -> Option<f64> {
    let known = KNOWN.get(text.trim()).or_else(|| {
        let holds = |(question, _): &(&String, &f64)| text.contains(question.as_str());
        KNOWN.iter().find(holds).map(|(_, answer)| answer)
    });
    known.copied().or_else(|| {
        let (before, after) = text.split_once(" + ")?;
        let is_other = |c: char| !c.is_ascii_digit();
        let (a, b) = (
            before.rsplit(is_other).next()?,
            after.split(is_other).next()?,
        );
        Some(number(a)? + number(b)?)
    })
}

/// Stop strings: one, several, or none.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
pub(super) enum Stop {
    One(String),
    Several(Vec<String>),
    #[default]
    None,
}

impl Stop {
    fn strings(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
            Self::None => &[],
        }
    }
}

/// Why a text ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    /// It is complete.
    Done,
    /// It reached this stop string.
    Stopped(String),
    /// It reached the limit of tokens.
    Length,
}

impl End {
    /// Returns the `finish_reason` of a chat or a completion.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Done | Self::Stopped(_) => "stop",
        }
    }

    pub(super) fn stop_string(&self) -> Option<&str> {
        match self {
            Self::Stopped(stop) => Some(stop),
            _ => None,
        }
    }
}

/// Cuts a text before the first stop string, or at its limit, whichever comes first.
pub(super) fn cut(text: &mut String, stop: &Stop, limit: Option<usize>) -> End {
    if let Some(limit) = limit {
        text.truncate(limit);
    }
    let stops = stop.strings().iter().filter(|stop| !stop.is_empty());
    let places = stops.filter_map(|stop| Some((text.find(stop)?, stop)));
    if let Some((at, stop)) = places.min_by_key(|(at, _)| *at) {
        text.truncate(at);
        return End::Stopped(stop.clone());
    }
    limit.map_or(End::Done, |_| End::Length)
}

/// Returns the end of word number `most`, if there are more.
fn end_of_word(text: &str, most: u64) -> Option<usize> {
    let mut words = text.split_ascii_whitespace();
    let last = words.by_ref().take(usize::try_from(most).ok()?).last();
    words.next()?;
    let end = |last: &str| last.as_ptr() as usize + last.len() - text.as_ptr() as usize;
    Some(last.map_or(0, end))
}

#[cfg(test)]
mod tests {
    use super::super::super::config::SimConfig;
    use super::super::super::verifier::extract_answer;
    use super::*;

    const TOOLS: &str = r#"[{"type": "function", "name": "add", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}, "required": ["a"]}}]"#;

    fn profile(text: &str) -> Profile {
        let config: SimConfig = toml::from_str(text).unwrap();
        Profile::with(&config, Default::default())
    }

    fn said(profile: &Profile, tools: &str, turns: u64, seed: Option<u64>) -> Said {
        let tools: Vec<Tool> = serde_json::from_str(tools).unwrap();
        let prompt = Prompt {
            conversation: Conversation {
                start: "What is 3 + 4?",
                digest: turns,
                turns,
                tokens: 0,
            },
            tools: &tools,
            parallel: true,
            seed,
        };
        prompt.said(profile)
    }

    #[test]
    fn the_same_prompt_and_seed_have_the_same_answer() {
        let profile = profile("");
        for turns in 0..5 {
            let one = said(&profile, TOOLS, turns, Some(3));
            assert_eq!(one, said(&profile, TOOLS, turns, Some(3)));
            assert_ne!(one.id, said(&profile, TOOLS, turns, Some(4)).id);
            assert_ne!(one.id, said(&profile, TOOLS, turns, None).id);
        }
        assert_eq!(
            said(&profile, TOOLS, 0, Some(0)),
            said(&profile, TOOLS, 0, None)
        );
    }

    #[test]
    fn tools_are_called_for_as_many_turns_as_are_set() {
        let profile = profile("turns = 20\ndifficulty = 0.0");
        let mut together = 0;
        for turn in 0..20 {
            let said = said(&profile, TOOLS, turn, None);
            assert!(said.text.is_empty());
            together += usize::from(said.calls.len() > 1);
            for call in &said.calls {
                assert_eq!(call.name, "add");
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                assert!(arguments["a"].is_i64());
            }
            assert!(!said.calls.is_empty());
        }
        assert!((1..20).contains(&together));
        let last = said(&profile, TOOLS, 20, None);
        assert!(last.calls.is_empty());
        assert_eq!(json!(extract_answer(&last.text).unwrap().to_string()), "7");
    }

    #[test]
    fn without_tools_the_answer_comes_in_the_last_turn() {
        let profile = profile("turns = 3");
        let answers = |turn| extract_answer(&said(&profile, "[]", turn, None).text).is_some();
        assert_eq!([0, 1, 2, 3].map(answers), [false, false, true, true]);
    }

    #[test]
    fn what_does_not_fit_is_not_said() {
        let said = || Said {
            reasoning: Some("one two three".into()),
            text: String::new(),
            calls: vec![MadeCall {
                name: "add".into(),
                arguments: "{}".into(),
                id: "c".into(),
            }],
            id: 0,
        };
        let left = |most| {
            let mut said = said();
            let end = said.limit(&Stop::None, Some(most));
            (end, said.reasoning.unwrap(), said.calls.len())
        };
        assert_eq!(left(5), (End::Done, "one two three".into(), 1));
        assert_eq!(left(4), (End::Length, "one two three".into(), 0));
        assert_eq!(left(2), (End::Length, "one two".into(), 0));
    }

    #[test]
    fn turns_and_success_are_drawn_by_the_seed() {
        let profile = profile("difficulty_spread = 0.0");
        let mut right = 0;
        let mut lengths = [0; 5];
        for seed in 0..1000 {
            let turns = (0..).find(|turn| {
                let said = said(&profile, TOOLS, *turn, Some(seed));
                let answer = extract_answer(&said.text).map(|answer| answer.to_string());
                right += usize::from(answer.as_deref() == Some("7"));
                answer.is_some()
            });
            lengths[turns.unwrap() as usize] += 1;
        }
        assert!((550..650).contains(&right), "{right}");
        assert!(
            lengths[0] == 0 && lengths[1..].iter().all(|n| *n > 150),
            "{lengths:?}"
        );
    }

    #[test]
    fn arguments_are_valid() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer", "minimum": 0},
                "share": {"type": "number", "minimum": 0},
                "exact": {"type": "boolean"},
                "places": {"type": "array", "items": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                    "required": ["x", "y"],
                }},
            },
            "required": ["city", "days", "share", "exact", "places"],
            "additionalProperties": false,
        });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let mut draws = Draws::from_state(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let arguments = arguments(&schema, &mut draws);
            assert!(validator.is_valid(&arguments), "{arguments}");
            seen.insert(arguments.to_string());
        }
        assert!(seen.len() > 100);
    }

    #[test]
    fn a_schema_of_nothing_takes_nothing() {
        let mut draws = Draws::from_state(1);
        for schema in [
            json!({}),
            json!({"type": "object"}),
            json!(null),
            json!({"type": "string"}),
        ] {
            assert_eq!(arguments(&schema, &mut draws), json!({}));
        }
    }

    fn answer(question: &str) -> Option<String> {
        right_answer(question).map(|number| number.to_string())
    }

    #[test]
    fn every_example_is_known() {
        let tasks = include_str!("../../../tests/data/example_tasks.jsonl").lines();
        for task in tasks {
            let (question, expected) = question_and_answer(task).unwrap();
            assert_eq!(right_answer(&question), Some(expected), "{question}");
            let wrapped = format!("<user>{question}</user>\n<assistant>");
            assert_eq!(right_answer(&wrapped), Some(expected));
        }
    }

    #[test]
    fn sums_are_worked_out() {
        for (question, right) in [("What is 3 + 4?", "7"), ("Task 9: 13 + 4, and 6?", "17")] {
            assert_eq!(answer(question).as_deref(), Some(right), "{question}");
        }
        for question in ["", "How are you?", "6 rows of 7?", "a + b"] {
            assert_eq!(answer(question), None, "{question}");
        }
    }

    fn parts(text: &str, stop: &str, most: Option<u64>) -> (String, End) {
        let stop: Stop = serde_json::from_str(stop).unwrap();
        let end = most.and_then(|most| end_of_word(text, most));
        let mut text = text.to_owned();
        let end = cut(&mut text, &stop, end);
        (text, end)
    }

    #[test]
    fn a_text_ends_at_what_comes_first() {
        let text = "one two  three four";
        let stopped = |stop: &str| End::Stopped(stop.into());
        for (stop, most, left, end) in [
            ("null", None, text, End::Done),
            ("null", Some(4), text, End::Done),
            ("null", Some(3), "one two  three", End::Length),
            ("null", Some(0), "", End::Length),
            ("\"thr\"", None, "one two  ", stopped("thr")),
            (r#"["four", "two"]"#, None, "one ", stopped("two")),
            (r#"["four"]"#, Some(2), "one two", End::Length),
            (r#"["", "five"]"#, None, text, End::Done),
        ] {
            assert_eq!(
                parts(text, stop, most),
                (left.to_owned(), end),
                "{stop} {most:?}"
            );
        }
    }
}
