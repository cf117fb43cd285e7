//! What the model says: [`Prompt::said`], a function of the conversation and the seed.

use super::super::answer::last_words;
use super::super::draws::{Draws, digest};
use super::super::filler::append_filler;
use super::super::oracle::RowDifficulty;
use super::super::profile::Profile;
use super::arguments::arguments;
use super::conversation::words;
use super::cut::{End, Stop, cut};
use super::question::right_answer;
use super::tool::Tool;

/// The streams of draws: what a question has in all conversations that begin with it, what a
/// conversation has in all its turns, and what a turn has to itself.
const OF_QUESTION: u64 = 5;
const OF_CONVERSATION: u64 = 6;
const OF_TURN: u64 = 7;

/// The most turns that are drawn.
const MOST_TURNS: usize = 4;

/// What the model is asked.
#[derive(Debug)]
pub(super) struct Prompt<'a> {
    /// What the user said first.
    pub start: &'a str,
    /// A number for all that was said.
    pub digest: u64,
    /// How often the model has spoken.
    pub turns: u64,
    /// What it may call.
    pub tools: &'a [Tool<'a>],
    /// It may make several calls at once.
    pub parallel: bool,
    /// The request's seed.
    pub seed: Option<u64>,
}

/// What the model says.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    /// What it thinks before.
    pub reasoning: Option<String>,
    /// What it says; empty where it calls tools. Needs no escapes in JSON.
    pub text: String,
    /// Calls, all at once.
    pub calls: Vec<Made>,
    /// Names this very answer.
    pub id: u64,
}

/// A call that the model makes.
#[derive(Debug, PartialEq)]
pub(super) struct Made {
    /// The tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
    /// Names the call.
    pub id: String,
}

impl Said {
    /// Tokens of all of it: words.
    pub(super) fn tokens(&self) -> u64 {
        let calls = self.calls.iter();
        let calls: u64 = calls.map(|call| 1 + words(&call.arguments)).sum();
        self.reasoning_tokens() + words(&self.text) + calls
    }

    /// Ends it before the first stop string, or after `most` tokens, whichever comes first. Calls
    /// that do not fit are not made.
    pub(super) fn limit(&mut self, stop: &Stop, most: Option<u64>) -> End {
        let calls_fit = self.calls.is_empty() || most.is_none_or(|most| self.tokens() <= most);
        if !calls_fit {
            self.calls.clear();
        }
        let thought = self.reasoning_tokens();
        match most {
            Some(most) if most < thought => {
                if let Some(reasoning) = &mut self.reasoning {
                    cut(reasoning, &Stop::None, Some(most));
                }
                self.text.clear();
                End::Length
            }
            _ if !calls_fit => End::Length,
            most => cut(&mut self.text, stop, most.map(|most| most - thought)),
        }
    }

    /// Tokens of what it thinks.
    pub(super) fn reasoning_tokens(&self) -> u64 {
        self.reasoning.as_deref().map_or(0, words)
    }
}

impl Prompt<'_> {
    /// What the model says. Given tools, it calls some of them for the conversation's number of
    /// turns, and gives its answer then; without tools, it gives it in the last of them.
    pub(super) fn said(&self, profile: &Profile) -> Said {
        let seed = self.seed.unwrap_or(profile.seed);
        let question = digest(self.start.as_bytes());
        let mut of_question = Draws::keyed(profile.seed, &[OF_QUESTION, question]);
        let mut of_conversation = Draws::keyed(seed, &[OF_CONVERSATION, question]);
        let mut of_turn = Draws::keyed(seed, &[OF_TURN, question, self.digest, self.turns]);

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
        if !tools.is_empty() && self.turns < turns {
            let several = self.parallel && of_turn.below(3) == 0;
            let count = if several { 2 + of_turn.below(2) } else { 1 };
            let calls = (0..count).filter_map(|n| made(&tools, n, id, &mut of_turn));
            said.calls = calls.collect();
        } else if tools.is_empty() && self.turns + 1 < turns {
            said.text = some_words(&mut of_turn, 60);
        } else {
            let right = right_answer(self.start);
            said.text = last_words(right, correct, || self.start, of_turn);
        }
        said
    }
}

fn made(tools: &[&Tool], number: usize, id: u64, draws: &mut Draws) -> Option<Made> {
    let tool = tools.get(draws.below(tools.len()))?;
    let schema = serde_json::from_str(tool.schema()).unwrap_or_default();
    Some(Made {
        name: tool.name()?.to_owned(),
        arguments: arguments(&schema, draws).to_string(),
        id: format!("call_{id:016x}_{number}"),
    })
}

/// Words that say nothing, up to `most` and a few more.
fn some_words(draws: &mut Draws, most: usize) -> String {
    let mut text = Vec::new();
    append_filler(&mut text, 6 * (5 + draws.below(most)), draws.next_u64());
    // The first and the last can be parts of words.
    let text = String::from_utf8(text).unwrap_or_default();
    let whole = text.split_once(' ').map_or("", |(_, rest)| rest);
    let whole = whole.rsplit_once(' ').map_or(whole, |(rest, _)| rest);
    whole.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::arithmetic::extract_answer;
    use super::super::super::config::SimConfig;
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
            start: "What is 3 + 4?",
            digest: turns,
            turns,
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
            calls: vec![Made {
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
}
