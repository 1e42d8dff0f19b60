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
    /// Where the rule does not look: TRL counts the next role's mark as the end of an answer.
    Elsewhere,
}

/// What is the assistant's own of a template's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub begin: Begin,
    /// The template leaves out what stands before `</think>`, and TRL trains it.
    pub keeps_reasoning: bool,
    /// TRL trains earlier turns as the template shortens them, which is refused here.
    pub shortens: bool,
}

const fn begins(begin: Begin) -> Rule {
    Rule {
        begin,
        keeps_reasoning: false,
        shortens: false,
    }
}

const SHORTENS: Rule = Rule {
    begin: Begin::Cue,
    keeps_reasoning: false,
    shortens: true,
};

const KNOWN: [(&str, Rule); 11] = [
    // Qwen2.5
    (
        "55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a",
        begins(Begin::CueWord),
    ),
    // DeepSeek-V3
    (
        "563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64",
        begins(Begin::Message),
    ),
    // gpt-oss
    (
        "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
        begins(Begin::Message),
    ),
    // Muse Glimmer
    (
        "6cd0e94d9b489fdb9a000743791f20e7e52b62c1e5cbb66fcc91c6716595223a",
        begins(Begin::Message),
    ),
    // GLM-4-MoE
    (
        "44f815868bf02fa458dd2f741a338046f4bf45f398eb6d067766726b9d96cce3",
        begins(Begin::Elsewhere),
    ),
    // Nemotron 3 Nano
    (
        "43a92aacc2e169bb37055e4d8b0df31edfdc8657d8c387fcf98254cb246e626a",
        SHORTENS,
    ),
    // Nemotron 3 Super
    (
        "3b74d76d8b903752e764cae114ae8ae2f24cd260466cf672570c745219573d28",
        SHORTENS,
    ),
    // Nemotron 3 Ultra
    (
        "82753bef5cedc4932c1ed509b5c9a12be680fd86d1adb65bc3f7398d11c8eebc",
        SHORTENS,
    ),
    // Nemotron 3.5 Lightning
    (
        "58933db77d3099b4f78c55a38347a72e1ea05b97d6bd8f38775303dc0194e0a9",
        SHORTENS,
    ),
    // DiffusionGemma
    (
        "9aeb7eac68ad87bba7567e9d4597ff203e5609f1b427d9e823437d0142cc61bf",
        SHORTENS,
    ),
    // DeepSeek-R1-Distill
    (
        "56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f",
        Rule {
            begin: Begin::Message,
            keeps_reasoning: true,
            shortens: false,
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
