//! `xtrain generate`: continues prompts, or holds a conversation.

use super::{Error, Outcome};
use crate::config::{GeneratePlan, PromptSource};
use crate::data::chat_template::Message;
use crate::engine::{Generator, failed};
use crate::report::output;
use std::io::{self, BufRead, IsTerminal, Read, Write};

pub fn run(plan: GeneratePlan) -> Result<Outcome, Error> {
    match &plan.prompts {
        PromptSource::Text(prompt) => continue_all(&plan, &[prompt])?,
        PromptSource::File(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| {
                Error::because(format!("reading --prompt_file {}", file.display()), error)
            })?;
            let text = text.trim_start_matches('\u{feff}');
            let prompts: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
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
        println!();
        return Ok(());
    }
    for (number, text) in texts.iter().enumerate() {
        let (prompt, sequence) = (number / sequences + 1, number % sequences + 1);
        match sequences {
            1 => println!("--- prompt {prompt}"),
            _ => println!("--- prompt {prompt}, continuation {sequence}"),
        }
        output::write(text.as_bytes());
        println!();
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
        println!();
        conversation.push(Message::new("assistant", answer));
        Ok::<(), Error>(())
    };
    if let Some(message) = message {
        return answer(&mut conversation, message);
    }
    let mut stdin = io::stdin().lock();
    if !stdin.is_terminal() {
        let mut message = String::new();
        let read = stdin.read_to_string(&mut message);
        read.map_err(failed("reading standard input"))?;
        let message = message.trim_end_matches('\n');
        if message.is_empty() {
            return Err(Error::usage(
                "--chat: standard input has no message",
                "pipe one in, or add --prompt TEXT",
            ));
        }
        return answer(&mut conversation, message);
    }
    eprintln!("Type a message; an empty line or Ctrl-D ends the conversation.");
    loop {
        eprint!("> ");
        let mut line = String::new();
        let read = stdin.read_line(&mut line);
        read.map_err(failed("reading standard input"))?;
        let message = line.trim_end_matches(['\n', '\r']);
        if message.is_empty() {
            return Ok(());
        }
        answer(&mut conversation, message)?;
    }
}

/// Prints a piece at once.
fn show(piece: &str) {
    output::write(piece.as_bytes());
    // Who does not read any more has ended the program.
    let _ = io::stdout().flush();
}
