//! What single commands need.

use super::verdict::{Verdict, refuse_if};
use crate::config::flags::Flags;

pub fn generate_needs_a_prompt(flags: &Flags) -> Verdict {
    refuse_if(
        !flags.prompt.is_given(),
        "generate needs a text to continue",
        "add --prompt TEXT",
    )
}

pub fn top_needs_a_run(flags: &Flags) -> Verdict {
    refuse_if(
        !flags.watched_dir.is_given(),
        "top: no run given",
        "add the run's --output_dir DIR",
    )
}

pub fn top_as_json_is_one_look(flags: &Flags) -> Verdict {
    refuse_if(
        *flags.json && !*flags.once,
        "top draws on the terminal; --json prints the state once",
        "add --once",
    )
}

pub fn show_takes_one_id(flags: &Flags) -> Verdict {
    refuse_if(
        flags.id.len() != 1,
        "cache show takes one id",
        "`xtrain cache ls` lists them; `xtrain cache show ID`",
    )
}

pub fn explain_takes_one_or_two_ids(flags: &Flags) -> Verdict {
    refuse_if(
        !(1..=2).contains(&flags.id.len()),
        "cache explain takes one id or two",
        "`xtrain cache ls` lists them; `xtrain cache explain OLD NEW`",
    )
}

pub fn prune_needs_criteria(flags: &Flags) -> Verdict {
    let criteria = [
        flags.older_than.is_given(),
        flags.max_size.is_given(),
        flags.only_device.is_given(),
        *flags.stale_compiler,
    ];
    refuse_if(
        !criteria.contains(&true),
        "cache prune: no criteria given",
        "add --older_than DAYS, --max_size SIZE, --only_device NAME or --stale_compiler",
    )
}

pub fn archive_needs_a_file(flags: &Flags) -> Verdict {
    refuse_if(
        !flags.file.is_given(),
        "no tar file given",
        "add --file graphs.tar",
    )
}
