//! Chat templates without generation tags of which it is known what TRL 1.16 trains of them: which text
//! of a turn is the assistant's own where that does not follow from what the template writes. They are
//! recognized by a digest of their text.

/// Where an assistant's own text begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Begin {
    /// Behind the cue that asks for an answer, less what it says of reasoning.
    #[default]
    Cue,
    /// There, with the white space that the cue ends in.
    CueWord,
    /// With its message: the name of its role is the assistant's own.
    Message,
}

/// What is the assistant's own of a template's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub begin: Begin,
    /// The template leaves out what stands before `</think>`, and TRL trains it.
    pub keeps_reasoning: bool,
}

const KNOWN: [(&str, Rule); 4] = [
    // Qwen2.5
    (
        "55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a",
        Rule {
            begin: Begin::CueWord,
            keeps_reasoning: false,
        },
    ),
    // DeepSeek-V3
    (
        "563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64",
        Rule {
            begin: Begin::Message,
            keeps_reasoning: false,
        },
    ),
    // DeepSeek-R1-Distill
    (
        "56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f",
        Rule {
            begin: Begin::Message,
            keeps_reasoning: true,
        },
    ),
    // gpt-oss
    (
        "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
        Rule {
            begin: Begin::Message,
            keeps_reasoning: false,
        },
    ),
];

impl Rule {
    /// That of a template by the digest of its text.
    pub fn of(digest: Option<&str>) -> Rule {
        let known = KNOWN.iter().find(|(known, _)| Some(*known) == digest);
        known.map(|(_, rule)| *rule).unwrap_or_default()
    }
}
