//! Choices of agents that rollstream runs itself.

use serde::{Deserialize, Serialize};

/// What kind of agent it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentKind {
    /// An agent server of NeMo Gym: `POST /run`.
    #[default]
    NemoGym,
    /// A model and a resources server, between which rollstream calls the tools.
    Responses,
    /// A model and environments, between which rollstream takes turns.
    MultiTurn,
}

impl AgentKind {
    /// Its name, as settings spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NemoGym => "nemo-gym",
            Self::Responses => "responses",
            Self::MultiTurn => "multi-turn",
        }
    }
}

/// What a model's servers understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelApi {
    /// `/v1/responses`
    Responses,
    /// `/v1/chat/completions`
    #[default]
    ChatCompletions,
    /// `/v1/completions` with token ids in and out, as vLLM and SGLang have it.
    Completions,
}

/// What a resources server understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resources {
    /// `/seed_session`, a path per tool, `/verify`.
    #[default]
    Tools,
    /// `/reset` and `/step`.
    Gymnasium,
}

/// How the samples of a multi-turn agent keep pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Each goes at its own pace.
    #[default]
    PerSample,
    /// All of a batch take each turn together.
    Lockstep,
}

/// The rules of a multi-turn rollout: those of NeMo RL now, and of its older forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// The current ones.
    #[default]
    PerSample,
    /// The older form in which each sample went at its own pace.
    PerSampleLegacy,
    /// The older form in which a batch took each turn together.
    LockstepLegacy,
}

/// What a failed rollout means for the others of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupFailure {
    /// Nothing.
    #[default]
    Each,
    /// They fail with it.
    All,
}
