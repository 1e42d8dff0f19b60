//! `xtrain generate`: continues prompts, or holds a conversation.

use super::{Error, Outcome};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use xtrain_config::{GeneratePlan, PromptSource};
use xtrain_data::chat_template::Message;
use xtrain_engine::{Generator, failed};
use xtrain_report::{err, errln, outln};
use xtrain_report::{files, output, units};

/// Bytes of a file of prompts, and of a prompt, at most. No model has positions for a longer one.
const PROMPTS: u64 = 64 << 20;
const PROMPT: u64 = 4 << 20;

pub fn run(plan: GeneratePlan) -> Result<Outcome, Error> {
    match &plan.prompts {
        PromptSource::Text(prompt) => continue_all(&plan, &[prompt])?,
        PromptSource::File(file) => {
            let name = format!("--prompt_file {}", file.display());
            let bytes = files::read_piped(file, PROMPTS)
                .map_err(|error| Error::because(format!("reading {name}"), error))?;
            let text = text(bytes, &name)?;
            let text = text.trim_start_matches('\u{feff}');
            let prompts: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
            if let Some(at) = text.lines().position(|line| line.len() as u64 > PROMPT) {
                return Err(too_long(format!("{name}: line {}", at + 1)));
            }
            if prompts.is_empty() {
                return Err(Error::usage(
                    format!("--prompt_file: {} has no prompt", file.display()),
                    "write one on each line",
                ));
            }
            continue_all(&plan, &prompts)?;
        }
        PromptSource::Chat { message, system } => {
            chat(&plan, message.as_deref(), system.as_deref())?
        }
    }
    Ok(Outcome::Done)
}

fn continue_all(plan: &GeneratePlan, prompts: &[&str]) -> Result<(), Error> {
    let texts = Generator::open(plan)?.continue_all(prompts, &mut show)?;
    let sequences = plan.num_return_sequences;
    if texts.len() == 1 {
        // It has been shown.
        outln!();
        return Ok(());
    }
    for (number, text) in texts.iter().enumerate() {
        let (prompt, sequence) = (number / sequences + 1, number % sequences + 1);
        match sequences {
            1 => outln!("--- prompt {prompt}"),
            _ => outln!("--- prompt {prompt}, continuation {sequence}"),
        }
        output::write(text.as_bytes());
        outln!();
    }
    Ok(())
}

/// Answers one message, that of a pipe if none is given, or what is typed until its end.
fn chat(plan: &GeneratePlan, message: Option<&str>, system: Option<&str>) -> Result<(), Error> {
    let mut generator = Generator::open(plan)?;
    let mut conversation: Vec<Message> = system
        .map(|text| Message::new("system", text))
        .into_iter()
        .collect();
    let mut answer = |conversation: &mut Vec<Message>, text: &str| {
        conversation.push(Message::new("user", text));
        let answer = generator.answer(conversation, &mut show)?;
        outln!();
        conversation.push(Message::new("assistant", answer));
        Ok::<(), Error>(())
    };
    if let Some(message) = message {
        return answer(&mut conversation, message);
    }
    let mut stdin = io::stdin().lock();
    if !stdin.is_terminal() {
        let mut bytes = Vec::new();
        let read = (&mut stdin).take(PROMPT + 1).read_to_end(&mut bytes);
        if read.map_err(failed("reading standard input"))? as u64 > PROMPT {
            return Err(too_long("--chat: the message on standard input".into()));
        }
        let message = text(bytes, "standard input")?;
        let message = message.trim_end_matches('\n');
        if message.is_empty() {
            return Err(Error::usage(
                "--chat: standard input has no message",
                "pipe one in, or add --prompt TEXT",
            ));
        }
        return answer(&mut conversation, message);
    }
    errln!("Type a message; an empty line or Ctrl-D ends the conversation.");
    loop {
        err!("> ");
        let mut line = String::new();
        let read = (&mut stdin).take(PROMPT).read_line(&mut line);
        read.map_err(failed("reading standard input"))?;
        let message = line.trim_end_matches(['\n', '\r']);
        if message.is_empty() {
            return Ok(());
        }
        answer(&mut conversation, message)?;
    }
}

/// Bytes as text.
fn text(bytes: Vec<u8>, name: &str) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Error::failed(format!("{name}: line {line} is not UTF-8"))
            .with_hint("save it as UTF-8, for example with iconv -t UTF-8")
    })
}

fn too_long(what: String) -> Error {
    let problem = format!("{what} has more than {}", units::bytes(PROMPT));
    Error::failed(problem).with_hint("no model takes such a prompt; write one prompt on each line")
}

/// Prints a piece at once.
fn show(piece: &str) {
    output::write(piece.as_bytes());
    // Who does not read any more has ended the program.
    let _ = io::stdout().flush();
}
